package main

import (
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var version = schema.GroupVersion{Group: "bench.webop.dev", Version: "v1"}

// Thing is an object of the bench: those of both collections look the same.
type Thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec Spec `json:"spec"`
}

type Spec struct {
	Replicas int    `json:"replicas,omitempty"`
	Image    string `json:"image,omitempty"`
	Ports    []int  `json:"ports,omitempty"`
	Sent     int64  `json:"sent,omitempty"`
}

type ThingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Thing `json:"items"`
}

// Essence is what users have written of an object: the last-handled state.
type Essence struct {
	Metadata *EssentialMeta `json:"metadata,omitempty"`
	Spec     Spec           `json:"spec"`
}

type EssentialMeta struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (t *Thing) essence() Essence {
	essence := Essence{Spec: t.Spec}
	annotations := maps.Clone(t.Annotations)
	delete(annotations, handled)
	if len(annotations) > 0 || len(t.Labels) > 0 {
		essence.Metadata = &EssentialMeta{t.Labels, annotations}
	}
	return essence
}

func (t *Thing) DeepCopyObject() runtime.Object {
	copied := *t
	copied.ObjectMeta = *t.ObjectMeta.DeepCopy()
	copied.Spec.Ports = slices.Clone(t.Spec.Ports)
	return &copied
}

func (l *ThingList) DeepCopyObject() runtime.Object {
	copied := ThingList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for index := range l.Items {
		copied.Items = append(copied.Items, *l.Items[index].DeepCopyObject().(*Thing))
	}
	return &copied
}

// thingKind returns the kind of the collection of this run.
func thingKind() string {
	plural := os.Getenv("BENCH_PLURAL")
	return strings.ToUpper(plural[:1]) + plural[1:]
}

// buildScheme maps our two types to this kind; ConfigMaps are the children.
func buildScheme(kind string) *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(version.WithKind(kind), &Thing{})
	scheme.AddKnownTypeWithName(version.WithKind(kind+"List"), &ThingList{})
	metav1.AddToGroupVersion(scheme, version)
	utilruntime.Must(corev1.AddToScheme(scheme))
	return scheme
}
