package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
)

// object contains those parts of an API object that a table stores. The listWatch converts each object as soon as it is
// decoded, so that memory never contains all complete objects of a list. object implements runtime.Object and
// metav1.ObjectMetaAccessor, which reflectors require.
type object struct {
	namespace, name string
	version         string // resource version
	uid             apitypes.UID
	// value is the converted content; its type depends on the resource. Nil means that the object has no effect.
	value any
}

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.namespace, Name: o.name, ResourceVersion: o.version, UID: o.uid}
}

// GetObjectKind implements runtime.Object.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. The copy shares the value, which is immutable.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// objectList is a list of objects, as an API server returns it.
type objectList struct {
	metav1.ListMeta
	Items []object
}

// GetObjectKind implements runtime.Object.
func (l *objectList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. The copy shares the values of the items, which are immutable.
func (l *objectList) DeepCopyObject() runtime.Object {
	return &objectList{ListMeta: l.ListMeta, Items: append([]object(nil), l.Items...)}
}
