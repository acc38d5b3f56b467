package kube

import (
	"sync"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// applyFunc changes a store (see config.NewFileStore).
type applyFunc func(put []*config.Resource, del []config.Key) (changed []config.Key)

// resourceTable stores the objects of a cluster kind. Their values are *config.Resource.
type resourceTable struct {
	kind  config.Kind
	store config.Store
	apply applyFunc
	// onChange is called after changes with the resources that are new or changed, and the keys of the removed ones. It
	// may be nil.
	onChange func(put []*config.Resource, del []config.Key)
}

func (t *resourceTable) put(o *object) { t.change([]*config.Resource{o.value.(*config.Resource)}, nil) }

func (t *resourceTable) remove(o *object) {
	key := config.Key{Kind: t.kind, Namespace: o.namespace, Name: o.name}
	if t.store.Get(key) != nil {
		t.change(nil, []config.Key{key})
	}
}

func (t *resourceTable) replace(all []*object) {
	put := make([]*config.Resource, 0, len(all))
	listed := make(map[config.Key]bool, len(all))
	for _, o := range all {
		r := o.value.(*config.Resource)
		put = append(put, r)
		listed[r.Key] = true
	}
	var del []config.Key
	for _, r := range t.store.List(t.kind) {
		if !listed[r.Key] {
			del = append(del, r.Key)
		}
	}
	t.change(put, del)
}

func (t *resourceTable) removeNamespaces(drop func(string) bool) {
	var del []config.Key
	for _, r := range t.store.List(t.kind) {
		if drop(r.Namespace) {
			del = append(del, r.Key)
		}
	}
	t.change(nil, del)
}

// change changes the store. It skips resources that are equal to the stored ones, for example after a heartbeat of a
// node.
func (t *resourceTable) change(put []*config.Resource, del []config.Key) {
	changed := put[:0]
	for _, r := range put {
		if old := t.store.Get(r.Key); old == nil || !old.Equal(r) || !old.Created.Equal(r.Created) {
			changed = append(changed, r)
		}
	}
	if len(changed) == 0 && len(del) == 0 {
		return
	}
	t.apply(changed, del)
	if t.onChange != nil {
		t.onChange(changed, del)
	}
}

func (t *resourceTable) size() (objects, bytes int) {
	for _, r := range t.store.List(t.kind) {
		objects++
		bytes += estimateSize(r)
	}
	return objects, bytes
}

// estimateSize returns the approximate memory of a resource without shared strings and label sets.
func estimateSize(r *config.Resource) int {
	const tableEntry = 100 // bytes per entry of the store's maps and lists
	n := tableEntry + int(unsafe.Sizeof(*r)) + len(r.Name)
	switch spec := r.Spec.(type) {
	case *config.PodSpec:
		n += int(unsafe.Sizeof(*spec)) + len(spec.UID) + len(spec.Addresses)*int(unsafe.Sizeof(spec.Addresses[0]))
	case *config.EndpointSliceSpec:
		n += int(unsafe.Sizeof(*spec)) + len(spec.Ports)*int(unsafe.Sizeof(config.SlicePort{}))
		for _, e := range spec.Endpoints {
			n += int(unsafe.Sizeof(e)) + len(e.Address) + len(e.Pod) + len(e.PodUID)
		}
	case *config.ServiceSpec:
		n += int(unsafe.Sizeof(*spec)) + len(spec.ClusterIP) + len(spec.Ports)*int(unsafe.Sizeof(config.ServicePort{}))
	}
	return n
}

// uidTable stores the UIDs of objects. An object whose value is nil is being deleted, and the table does not have it.
type uidTable struct {
	mu   sync.RWMutex
	uids map[objectName]string
}

type objectName struct{ namespace, name string }

func newUIDTable() *uidTable { return &uidTable{uids: map[objectName]string{}} }

func (t *uidTable) get(namespace, name string) (uid string, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	uid, ok = t.uids[objectName{namespace, name}]
	return uid, ok
}

func (t *uidTable) put(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(o)
}

func (t *uidTable) set(o *object) {
	if o.value == nil {
		delete(t.uids, objectName{o.namespace, o.name})
		return
	}
	t.uids[objectName{o.namespace, o.name}] = string(o.uid)
}

func (t *uidTable) remove(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.uids, objectName{o.namespace, o.name})
}

func (t *uidTable) replace(all []*object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.uids)
	for _, o := range all {
		t.set(o)
	}
}

func (t *uidTable) removeNamespaces(drop func(string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.uids {
		if drop(name.namespace) {
			delete(t.uids, name)
		}
	}
}

func (t *uidTable) size() (objects, bytes int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for name, uid := range t.uids {
		bytes += 100 + len(name.namespace) + len(name.name) + len(uid)
	}
	return len(t.uids), bytes
}
