package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventKey identifies an object of one kind.
type eventKey struct{ namespace, name string }

// eventStore is a cache.ReflectorStore that passes each change of an object to functions. It stores no objects.
type eventStore struct {
	set    func(metav1.Object)
	remove func(namespace, name string)
	// list returns the objects that were set and not removed.
	list func() []eventKey
	// replaced is called after a complete list was processed; nil if there is nothing to do.
	replaced func()
}

// Add implements cache.ReflectorStore.
func (s *eventStore) Add(o any) error { return s.Update(o) }

// Update implements cache.ReflectorStore.
func (s *eventStore) Update(o any) error {
	header, err := meta.Accessor(o)
	if err != nil {
		return fmt.Errorf("an object of type %T has no metadata: %w", o, err)
	}
	s.set(header)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *eventStore) Delete(o any) error {
	header, err := meta.Accessor(o)
	if err != nil {
		return fmt.Errorf("an object of type %T has no metadata: %w", o, err)
	}
	s.remove(header.GetNamespace(), header.GetName())
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *eventStore) Replace(list []any, _ string) error {
	current := map[eventKey]bool{}
	for _, o := range list {
		header, err := meta.Accessor(o)
		if err != nil {
			return fmt.Errorf("an object of type %T has no metadata: %w", o, err)
		}
		current[eventKey{header.GetNamespace(), header.GetName()}] = true
		s.set(header)
	}
	for _, known := range s.list() {
		if !current[known] {
			s.remove(known.namespace, known.name)
		}
	}
	if s.replaced != nil {
		s.replaced()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *eventStore) Resync() error { return nil }
