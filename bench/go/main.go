// The operator of the comparison on controller-runtime: the work of ../handlers.py.
//
// It watches one kind. An object whose last-handled state is missing is handled, and that state
// is recorded by one PATCH; one whose state is recorded and unchanged is left alone. With
// BENCH_EXTRA=children, it gives each object two children instead: see children.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	handled = "kopf.zalando.org/last-handled-configuration"
	// As many requests at once as webop allows itself.
	workers = 16
)

type reconciler struct {
	client.Client
	calls  atomic.Int64
	record *recorder
}

func main() {
	ctrl.SetLogger(logr.Discard())
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit of the client's own
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: buildScheme(thingKind()),
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         selectMaps(),
		},
		Metrics: metrics.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	record, err := openRecorder()
	if err != nil {
		return err
	}
	reconciler := &reconciler{Client: manager.GetClient(), record: record}
	if os.Getenv("BENCH_EXTRA") == "children" {
		err = (&builderOfMaps{reconciler}).setUp(manager)
	} else {
		err = reconciler.setUp(manager)
	}
	if err != nil {
		return err
	}
	if err := reconciler.tellCalls(); err != nil {
		return err
	}
	if err := manager.Start(ctrl.SetupSignalHandler()); err != nil {
		return err
	}
	return reconciler.tellCalls()
}

func (r *reconciler) setUp(with ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(with).
		For(&Thing{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var thing Thing
	if err := r.Get(ctx, request.NamespacedName, &thing); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	essence := thing.essence()
	if last, found := thing.Annotations[handled]; found {
		var before Essence
		if err := json.Unmarshal([]byte(last), &before); err != nil {
			return ctrl.Result{}, err
		}
		if reflect.DeepEqual(before, essence) {
			return ctrl.Result{}, nil
		}
	}
	if err := r.handle(&thing); err != nil {
		return ctrl.Result{}, err
	}
	patch, err := buildPatch(essence)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, client.IgnoreNotFound(r.Patch(ctx, &thing, patch))
}

// handle is what the user of a framework would write.
func (r *reconciler) handle(thing *Thing) error {
	r.calls.Add(1)
	return r.record.note(thing)
}

func buildPatch(essence Essence) (client.Patch, error) {
	state, err := json.Marshal(essence)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{handled: string(state)}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	return client.RawPatch(types.MergePatchType, patch), err
}

func (r *reconciler) tellCalls() error {
	path := filepath.Join(os.Getenv("BENCH_WORKDIR"), "calls.txt")
	return os.WriteFile(path, []byte(strconv.FormatInt(r.calls.Load(), 10)), 0o644)
}

// recorder writes down each call at once, so that a kill loses none: see ../handlers.py.
type recorder struct {
	latency, record *os.File
	lastCall        int64
}

func openRecorder() (*recorder, error) {
	folder := os.Getenv("BENCH_WORKDIR")
	latency, err := os.Create(filepath.Join(folder, "latency.txt"))
	if err != nil {
		return nil, err
	}
	found, last, _ := strings.Cut(os.Getenv("BENCH_EXTRA"), ":")
	if found != "record" {
		return &recorder{latency: latency}, nil
	}
	lastCall, err := strconv.ParseInt(last, 10, 64)
	if err != nil {
		return nil, err
	}
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY
	record, err := os.OpenFile(filepath.Join(folder, "record.txt"), flags, 0o644)
	return &recorder{latency, record, lastCall}, err
}

func (r *recorder) note(thing *Thing) error {
	if thing.Spec.Sent != 0 {
		fmt.Fprintf(r.latency, "%d %d\n", thing.Spec.Sent, time.Now().UnixNano())
	}
	if r.record == nil {
		return nil
	}
	if _, err := fmt.Fprintf(r.record, "%-19s\n", thing.Name); err != nil {
		return err
	}
	facts, err := r.record.Stat()
	if err == nil && r.lastCall > 0 && facts.Size() >= r.lastCall*20 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return err
}
