package config

// MemoryStore is a store that its owner fills: the workloads of a local mesh, for instance, or the resources of a test.
type MemoryStore struct{ *table }

// NewMemoryStore makes an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{newTable(nil)} }

// Put adds or replaces resources, all in one change. A resource without a time of creation gets that of the one it
// replaces, or the present. Putting what is already there changes nothing and tells nobody.
func (s *MemoryStore) Put(resources ...*Resource) { s.apply(resources, nil) }

// Delete removes resources, all in one change. Keys that are not there are ignored.
func (s *MemoryStore) Delete(keys ...Key) { s.apply(nil, keys) }
