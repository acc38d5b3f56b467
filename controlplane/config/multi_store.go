package config

import (
	"fmt"
	"slices"
	"sync"
)

// MultiStore combines several stores. If two stores have a resource with the same key, the resource of the earlier
// store is in force and hides the other one.
type MultiStore struct{ stores []Store }

// NewMultiStore returns a store that combines stores. The first one has the highest precedence.
func NewMultiStore(stores ...Store) *MultiStore { return &MultiStore{stores: slices.Clone(stores)} }

// List implements Store.
func (j *MultiStore) List(kind Kind) []*Resource {
	all, _ := j.merge(kind)
	return all
}

// merge returns the resources of the kind that are in force, and the hidden resources.
func (j *MultiStore) merge(kind Kind) (inForce []*Resource, hidden []hiddenResource) {
	for _, store := range j.stores {
		inForce, hidden = mergeSorted(inForce, store.List(kind), hidden)
	}
	return inForce, hidden
}

// mergeSorted merges two sorted lists. If both have a resource with the same key, it drops the resource of others and
// appends it to hidden.
func mergeSorted(first, others []*Resource, hidden []hiddenResource) ([]*Resource, []hiddenResource) {
	if len(first) == 0 {
		return others, hidden
	}
	if len(others) == 0 {
		return first, hidden
	}
	all := make([]*Resource, 0, len(first)+len(others))
	for _, r := range others {
		for len(first) > 0 && CompareKeys(first[0].Key, r.Key) < 0 {
			all, first = append(all, first[0]), first[1:]
		}
		if len(first) > 0 && first[0].Key == r.Key {
			hidden = append(hidden, hiddenResource{winner: first[0], loser: r})
			continue
		}
		all = append(all, r)
	}
	return append(all, first...), hidden
}

type hiddenResource struct{ winner, loser *Resource }

// Get implements Store.
func (j *MultiStore) Get(key Key) *Resource {
	for _, store := range j.stores {
		if r := store.Get(key); r != nil {
			return r
		}
	}
	return nil
}

// Subscribe implements Store. It also notifies of changes of hidden resources.
func (j *MultiStore) Subscribe(notify func(changed []Key)) (cancel func()) {
	var mu sync.Mutex
	var cancels []func()
	for _, store := range j.stores {
		cancels = append(cancels, store.Subscribe(func(changed []Key) {
			mu.Lock()
			defer mu.Unlock()
			notify(changed)
		}))
	}
	return func() {
		for _, c := range cancels {
			c()
		}
	}
}

// Problems returns a finding for each hidden resource, which has the same key as a resource of an earlier store.
func (j *MultiStore) Problems() []Problem {
	var problems []Problem
	for _, kind := range Kinds() {
		_, hidden := j.merge(kind)
		for _, h := range hidden {
			problems = append(problems, Problem{
				Code:     DuplicateName,
				Severity: h.loser.Kind.DuplicateSeverity(),
				Key:      h.loser.Key,
				At:       h.loser.Origin,
				Field:    "metadata.name",
				Value:    h.loser.Name,
				Message:  fmt.Sprintf("another source has a %s of this name, at %s, which is in force instead of this document", h.loser.Kind, h.winner.Origin),
				Remedy:   h.loser.Kind.DuplicateRemedy(),
			})
		}
	}
	return problems
}
