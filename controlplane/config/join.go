package config

import (
	"fmt"
	"slices"
	"sync"
)

// Joined is several stores seen as one. Where two of them have a resource of one name, the first store's is in force.
type Joined struct{ stores []Store }

// Join makes one store of several.
func Join(stores ...Store) *Joined { return &Joined{stores: slices.Clone(stores)} }

// List implements Store.
func (j *Joined) List(kind Kind) []*Resource {
	all, _ := j.merge(kind)
	return all
}

// merge gives the resources in force of a kind, and those that others hide.
func (j *Joined) merge(kind Kind) (inForce []*Resource, hidden []hiding) {
	for _, store := range j.stores {
		inForce, hidden = withOthers(inForce, store.List(kind), hidden)
	}
	return inForce, hidden
}

// withOthers adds a list to one that goes before it, both in order.
func withOthers(first, others []*Resource, hidden []hiding) ([]*Resource, []hiding) {
	if len(first) == 0 {
		return others, hidden
	}
	if len(others) == 0 {
		return first, hidden
	}
	all := make([]*Resource, 0, len(first)+len(others))
	for _, r := range others {
		for len(first) > 0 && compareKeys(first[0].Key, r.Key) < 0 {
			all, first = append(all, first[0]), first[1:]
		}
		if len(first) > 0 && first[0].Key == r.Key {
			hidden = append(hidden, hiding{winner: first[0], loser: r})
			continue
		}
		all = append(all, r)
	}
	return append(all, first...), hidden
}

type hiding struct{ winner, loser *Resource }

// Get implements Store.
func (j *Joined) Get(key Key) *Resource {
	for _, store := range j.stores {
		if r := store.Get(key); r != nil {
			return r
		}
	}
	return nil
}

// Subscribe implements Store. A change in a store that another one hides is told too.
func (j *Joined) Subscribe(notify func(changed []Key)) (cancel func()) {
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

// Problems tells of the resources that another store's resource of the same name hides.
func (j *Joined) Problems() []Problem {
	var problems []Problem
	for _, kind := range Kinds() {
		_, hidden := j.merge(kind)
		for _, h := range hidden {
			problems = append(problems, Problem{
				Code:     DuplicateName,
				Severity: Error,
				Key:      h.loser.Key,
				At:       h.loser.Origin,
				Field:    "metadata.name",
				Value:    h.loser.Name,
				Message:  fmt.Sprintf("another source has a %s of this name, at %s, which is the one in force", h.loser.Kind, h.winner.Origin),
				Remedy:   "rename one of the two, or remove it",
			})
		}
	}
	return problems
}
