package main

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

const fieldOwner = "bench"

// The labels of all children, by which the cache selects them.
var ofBench = map[string]string{"app": "bench"}

// builderOfMaps gives each Thing two ConfigMaps, like build() in ../handlers.py. Like most
// controllers, it leaves all comparisons to server-side apply.
type builderOfMaps struct {
	*reconciler
}

func (b *builderOfMaps) setUp(with ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(with).
		For(&Thing{}).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(b)
}

func selectMaps() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: {Label: labels.SelectorFromSet(ofBench)},
	}
}

func (b *builderOfMaps) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var thing Thing
	if err := b.Get(ctx, request.NamespacedName, &thing); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	b.calls.Add(1)
	for _, part := range []string{"a", "b"} {
		if err := b.applyMap(ctx, &thing, part); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, nil
}

func (b *builderOfMaps) applyMap(ctx context.Context, thing *Thing, part string) error {
	kind := version.WithKind(thingKind())
	owner := metaac.OwnerReference().
		WithAPIVersion(kind.GroupVersion().String()).
		WithKind(kind.Kind).
		WithName(thing.Name).
		WithUID(thing.UID).
		WithController(true).
		WithBlockOwnerDeletion(true)
	child := coreac.ConfigMap(thing.Name+"-"+part, thing.Namespace).
		WithLabels(ofBench).
		WithOwnerReferences(owner).
		WithData(map[string]string{
			"image":    thing.Spec.Image,
			"replicas": strconv.Itoa(thing.Spec.Replicas),
		})
	return b.Apply(ctx, child, client.FieldOwner(fieldOwner), client.ForceOwnership)
}
