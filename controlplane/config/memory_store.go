package config

// MemoryStore is a store whose owner adds resources by Put, for example the workloads of a local mesh or the resources
// of a test.
type MemoryStore struct{ *resourceTable }

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{newTable(nil)} }

// Put adds or replaces resources in one change. A resource without a creation time inherits the creation time of the
// resource that it replaces, or else receives the current time. Resources that are equal to the replaced ones cause no
// notification.
func (s *MemoryStore) Put(resources ...*Resource) { s.apply(resources, nil) }

// Delete removes resources in one change. Unknown keys are ignored.
func (s *MemoryStore) Delete(keys ...Key) { s.apply(nil, keys) }
