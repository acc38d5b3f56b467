package config

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// table is the resources in force and those who want to know of changes. It is what every store here is made of.
type table struct {
	now func() time.Time

	// writing is held through a change and its notifications, so that these come in order and one at a time.
	writing sync.Mutex

	mu     sync.RWMutex
	kinds  map[Kind]map[Key]*Resource
	sorted sorted

	subscribersMu sync.Mutex
	subscribers   map[int]func([]Key)
	nextID        int
}

// undated is the time of creation of documents from files that do not tell one. When a file was first seen says nothing:
// of two control planes over the same files, one may have started later, and both have to decide alike.
func undated() time.Time { return time.Time{} }

func newTable(now func() time.Time) *table {
	if now == nil {
		now = time.Now
	}
	return &table{
		now:         now,
		kinds:       map[Kind]map[Key]*Resource{},
		sorted:      sorted{},
		subscribers: map[int]func([]Key){},
	}
}

// List implements Store.
func (t *table) List(kind Kind) []*Resource {
	t.mu.RLock()
	list, ok := t.sorted[kind]
	if ok {
		list = slices.Clone(list)
	}
	t.mu.RUnlock()
	if !ok {
		list = t.sort(kind)
	}
	return list
}

func (t *table) sort(kind Kind) []*Resource {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*Resource, 0, len(t.kinds[kind]))
	for _, r := range t.kinds[kind] {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *Resource) int { return compareKeys(a.Key, b.Key) })
	t.sorted[kind] = list
	return slices.Clone(list)
}

// sorted are the resources of each kind that was asked for, in order.
type sorted map[Kind][]*Resource

func (s sorted) put(r *Resource) {
	list, ok := s[r.Kind]
	if !ok {
		return
	}
	at, known := slices.BinarySearchFunc(list, r.Key, compareResource)
	if known {
		list[at] = r
	} else {
		s[r.Kind] = slices.Insert(list, at, r)
	}
}

func (s sorted) remove(key Key) {
	list, ok := s[key.Kind]
	if at, known := slices.BinarySearchFunc(list, key, compareResource); ok && known {
		s[key.Kind] = slices.Delete(list, at, at+1)
	}
}

func compareResource(r *Resource, key Key) int { return compareKeys(r.Key, key) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Get implements Store.
func (t *table) Get(key Key) *Resource {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kinds[key.Kind][key]
}

// Subscribe implements Store.
func (t *table) Subscribe(notify func(changed []Key)) (cancel func()) {
	t.subscribersMu.Lock()
	defer t.subscribersMu.Unlock()
	id := t.nextID
	t.nextID++
	t.subscribers[id] = notify
	return func() {
		t.subscribersMu.Lock()
		defer t.subscribersMu.Unlock()
		delete(t.subscribers, id)
	}
}

// apply puts and deletes in one change, and tells the subscribers of what differs now. It returns the keys that differ.
func (t *table) apply(put []*Resource, del []Key) []Key {
	t.writing.Lock()
	defer t.writing.Unlock()
	changed := t.swap(put, del)
	if len(changed) == 0 {
		return nil
	}
	for _, notify := range t.notified() {
		notify(slices.Clone(changed))
	}
	return changed
}

func (t *table) notified() []func([]Key) {
	t.subscribersMu.Lock()
	defer t.subscribersMu.Unlock()
	list := make([]func([]Key), 0, len(t.subscribers))
	for id := range t.nextID {
		if notify, ok := t.subscribers[id]; ok {
			list = append(list, notify)
		}
	}
	return list
}

func (t *table) swap(put []*Resource, del []Key) []Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now() // one for all of a change: none of them is older than another
	var changed []Key
	for _, key := range del {
		if _, ok := t.kinds[key.Kind][key]; ok {
			delete(t.kinds[key.Kind], key)
			t.sorted.remove(key)
			changed = append(changed, key)
		}
	}
	for _, r := range put {
		if t.put(r, now) {
			changed = append(changed, r.Key)
		}
	}
	return changed
}

// put stores one resource and says whether that changes what it means: a document that only moved within its file is
// stored for its new place, and nobody is told.
func (t *table) put(r *Resource, now time.Time) bool {
	old := t.kinds[r.Kind][r.Key]
	if r.Created.IsZero() {
		r = r.createdAt(birth(old, now))
	}
	if t.kinds[r.Kind] == nil {
		t.kinds[r.Kind] = map[Key]*Resource{}
	}
	t.kinds[r.Kind][r.Key] = r
	t.sorted.put(r)
	return old == nil || !old.Equal(r) || !old.Created.Equal(r.Created)
}

func birth(old *Resource, now time.Time) time.Time {
	if old != nil {
		return old.Created
	}
	return now
}

// createdAt is a copy with that time of creation.
func (r *Resource) createdAt(at time.Time) *Resource {
	c := *r
	c.Created = at
	return &c
}
