package config

import (
	"slices"
	"sync"
	"time"
)

// resourceTable implements Store. It contains the resources in force and the subscribers.
type resourceTable struct {
	now func() time.Time

	// writing is locked during a change and its notifications, so that notifications are ordered and not concurrent.
	writing sync.Mutex

	mu     sync.RWMutex
	kinds  map[Kind]map[Key]*Resource
	sorted sortedCache

	subscribersMu sync.Mutex
	subscribers   map[int]func([]Key)
	nextID        int
}

// NewFileStore returns an empty store for the documents of files, and the function that changes it. apply puts and
// deletes resources in one change, notifies the subscribers and returns the keys of the resources that changed.
//
// If a document specifies no creation time, its resource has none. The time at which a file was first seen is not used,
// because two control planes with the same files may have started at different times and must decide equally.
func NewFileStore() (store Store, apply func(put []*Resource, del []Key) (changed []Key)) {
	t := newTable(func() time.Time { return time.Time{} })
	return t, t.apply
}

func newTable(now func() time.Time) *resourceTable {
	if now == nil {
		now = time.Now
	}
	return &resourceTable{
		now:         now,
		kinds:       map[Kind]map[Key]*Resource{},
		sorted:      sortedCache{},
		subscribers: map[int]func([]Key){},
	}
}

// List implements Store.
func (t *resourceTable) List(kind Kind) []*Resource {
	t.mu.RLock()
	list, ok := t.sorted[kind]
	if ok {
		list = slices.Clone(list)
	}
	t.mu.RUnlock()
	if !ok {
		list = t.sortKind(kind)
	}
	return list
}

func (t *resourceTable) sortKind(kind Kind) []*Resource {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*Resource, 0, len(t.kinds[kind]))
	for _, r := range t.kinds[kind] {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *Resource) int { return CompareKeys(a.Key, b.Key) })
	t.sorted[kind] = list
	return slices.Clone(list)
}

// sortedCache caches the sorted resources of each kind that was listed.
type sortedCache map[Kind][]*Resource

func (s sortedCache) put(r *Resource) {
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

func (s sortedCache) remove(key Key) {
	list, ok := s[key.Kind]
	if at, known := slices.BinarySearchFunc(list, key, compareResource); ok && known {
		s[key.Kind] = slices.Delete(list, at, at+1)
	}
}

func compareResource(r *Resource, key Key) int { return CompareKeys(r.Key, key) }

// Get implements Store.
func (t *resourceTable) Get(key Key) *Resource {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kinds[key.Kind][key]
}

// Subscribe implements Store.
func (t *resourceTable) Subscribe(notify func(changed []Key)) (cancel func()) {
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

// apply puts and deletes resources in one change and notifies the subscribers. It returns the keys of the resources
// that changed.
func (t *resourceTable) apply(put []*Resource, del []Key) []Key {
	t.writing.Lock()
	defer t.writing.Unlock()
	changed := t.replace(put, del)
	if len(changed) == 0 {
		return nil
	}
	for _, notify := range t.listSubscribers() {
		notify(slices.Clone(changed))
	}
	return changed
}

func (t *resourceTable) listSubscribers() []func([]Key) {
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

func (t *resourceTable) replace(put []*Resource, del []Key) []Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now() // all resources of the change have the same creation time
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

// put stores r and reports whether it differs from the stored resource. A new position alone is no difference: it is
// stored, but subscribers are not notified.
func (t *resourceTable) put(r *Resource, now time.Time) bool {
	old := t.kinds[r.Kind][r.Key]
	if r.Created.IsZero() {
		r = r.WithCreated(creationTime(old, now))
	}
	if t.kinds[r.Kind] == nil {
		t.kinds[r.Kind] = map[Key]*Resource{}
	}
	t.kinds[r.Kind][r.Key] = r
	t.sorted.put(r)
	return old == nil || !old.Equal(r) || !old.Created.Equal(r.Created)
}

func creationTime(old *Resource, now time.Time) time.Time {
	if old != nil {
		return old.Created
	}
	return now
}

// WithCreated returns a copy of r with the creation time created.
func (r *Resource) WithCreated(created time.Time) *Resource {
	c := *r
	c.Created = created
	return &c
}
