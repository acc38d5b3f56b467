package lastgood

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// Recording records the resources that Envoy accepts on one stream, so that the store saves them. Its methods do not
// block and are safe for concurrent use. After an error, or after Begin has started a newer recording, they have no
// effect.
type Recording struct {
	store *Store
	id    Identity

	// The store's mu guards the following fields.
	types     map[string]*typeChange
	isStopped bool
	// isComplete: Envoy has accepted a response to all its requests.
	isComplete bool
	// first and last are the times of the first and the last unsaved change.
	first, last time.Time
	isUpToDate  bool // the store must mark the files as up to date
	// stale contains the resources that are missing in a file or older than the file's version, by type URL and name.
	// It is used only for SotW, where all resources of a type have one version.
	stale map[string]map[string]struct{}
}

// Begin starts a recording for a new stream of Envoy and stops the previous recording. Unsaved changes of that
// recording are saved only after its Complete. If an error had stopped the saving, it resumes, unless the disk still
// hangs or no directory is usable. The caller must call Accept with every resource that Envoy has, except those that
// Load returned.
func (s *Store) Begin(id Identity) *Recording {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current; old != nil {
		if old.isComplete {
			s.queue = append(s.queue, old.removeAll())
			s.wake()
		}
		old.stop()
	}
	r := &Recording{store: s, id: id, types: make(map[string]*typeChange), stale: make(map[string]map[string]struct{})}
	s.current = r
	if r.isStopped = s.isHung || s.isUnusable; !r.isStopped {
		s.status.Reason = ""
	}
	return r
}

// IsActive reports whether the recording records changes.
func (r *Recording) IsActive() bool {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return !r.isStopped
}

// stop ends the recording and discards its changes. The caller holds the store's mu.
func (r *Recording) stop() {
	r.isStopped = true
	r.discard()
}

// discard discards the unsaved changes. The caller holds the store's mu.
func (r *Recording) discard() {
	for _, change := range r.types {
		change.free()
	}
	clear(r.types)
	r.first = time.Time{}
}

// Discard discards the unsaved changes.
func (r *Recording) Discard() {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.discard()
}

// Fail ends the recording because of an error.
func (r *Recording) Fail(err error) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if !r.isStopped {
		r.store.fail(err)
	}
}

// Accept records the resources of a response that Envoy accepted. rejected are the names of resources that Envoy did not
// accept. If isFull is set, the response contains all resources of its type. message is the encoded response; Accept
// frees it.
func (r *Recording) Accept(response wire.Response, message *wire.Message, isFull bool, rejected []string) {
	if message.Data.Len() < smallMessage {
		small := wire.NewMessage(message.Data.Materialize())
		message.Free()
		message = small
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.isStopped {
		message.Free()
		return
	}
	stale := r.stale[response.TypeURL]
	if isFull {
		clear(stale)
	}
	for _, one := range response.Resources {
		delete(stale, one.Name)
	}
	r.change(response.TypeURL).accept(response, message, isFull, rejected)
	r.scheduleSave()
}

// Invalidate records that Envoy rejected a response, or did not reply to it. The stored resources of the same names may
// then be older than the version of their type. In delta it has no effect, because each resource has its own version.
func (r *Recording) Invalidate(response wire.Response) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.isStopped || r.id.Protocol != sotw {
		return
	}
	for _, one := range response.Resources {
		r.markStale(response.TypeURL, one.Name)
	}
	r.change(response.TypeURL)
	r.scheduleSave()
}

// markStale records that a resource is missing or outdated in the file. The caller holds the store's mu.
func (r *Recording) markStale(typeURL, name string) {
	if r.stale[typeURL] == nil {
		r.stale[typeURL] = make(map[string]struct{})
	}
	r.stale[typeURL][name] = struct{}{}
}

// Remove records that Envoy no longer requests the resources with these names.
func (r *Recording) Remove(typeURL string, names []string) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.isStopped || len(names) == 0 {
		return
	}
	c := r.change(typeURL)
	for _, name := range names {
		c.remove(name)
		delete(r.stale[typeURL], name)
	}
	r.scheduleSave()
}

// Complete records that Envoy has accepted a response to each of its requests. The next save also removes resources of
// the listed types from the files, if isInUse returns false for them. The store calls isInUse later, when it writes a
// file. Before Complete, the store saves changes only after MaxDelay, or if they are large.
func (r *Recording) Complete(types []string, isInUse func(typeURL, name string) bool) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.isStopped {
		return
	}
	r.isComplete = true
	for _, typeURL := range types {
		r.change(typeURL).isInUse = func(name string) bool { return isInUse(typeURL, name) }
	}
	r.scheduleSave()
	r.store.schedule(r.store.config.Delay)
}

// MarkUpToDate records that Envoy has the current configuration of the control plane. It has no effect before Complete.
func (r *Recording) MarkUpToDate() {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if !r.isStopped && r.isComplete {
		r.isUpToDate = true
		r.store.wake()
	}
}

// change returns the unsaved changes of a type. It creates an empty set if there is none. The caller holds the store's
// mu.
func (r *Recording) change(typeURL string) *typeChange {
	c := r.types[typeURL]
	if c == nil {
		c = newTypeChange()
		r.types[typeURL] = c
	}
	return c
}

// scheduleSave records the time of a change. For the first unsaved change, it schedules a save. If the unsaved messages
// are large, it starts a save. The caller holds the store's mu.
func (r *Recording) scheduleSave() {
	r.last = time.Now()
	if r.first.IsZero() {
		r.first = r.last
		r.store.schedule(r.store.config.Delay)
	}
	if r.isLarge() {
		r.store.wake()
	}
}

// isLarge reports whether the unsaved messages use so much memory that the store must save them without delay.
func (r *Recording) isLarge() bool {
	var bytes int64
	for _, change := range r.types {
		bytes += change.unsavedBytes
	}
	return bytes > maxUnsavedBytes
}

// removeDue removes and returns the changes that the store must save now. After MaxDelay, these are all changes. The
// changes of a complete configuration are also due after Delay. No changes are due before the store's nextSave. If the
// changes are large, or if force is set, those of a complete configuration are due at once. Large changes of an
// incomplete configuration are due too, except listeners: an Envoy that receives stored listeners becomes ready. If no
// changes are due, removeDue schedules the next save. The caller holds the store's mu.
func (r *Recording) removeDue(force bool) batch {
	if len(r.types) == 0 {
		return batch{}
	}
	now, c := time.Now(), &r.store.config
	remaining := c.MaxDelay - now.Sub(r.first)
	if r.isComplete {
		remaining = min(remaining, c.Delay-now.Sub(r.last))
	}
	remaining = max(remaining, r.store.nextSave.Sub(now))
	switch {
	case remaining <= 0 || r.isComplete && (force || r.isLarge()):
		return r.removeAll()
	case r.isLarge():
		return r.removeAllExceptListeners(remaining)
	}
	r.store.schedule(remaining)
	return batch{}
}

// removeAllExceptListeners is like removeAll, but listeners remain unsaved. It schedules their save after the time
// remaining.
func (r *Recording) removeAllExceptListeners(remaining time.Duration) batch {
	listeners, first := r.types[listenerType], r.first
	delete(r.types, listenerType)
	b := r.removeAll()
	if listeners != nil {
		r.types[listenerType], r.first = listeners, first
		r.store.schedule(remaining)
	}
	return b
}

// removeAll removes and returns all changes. The caller holds the store's mu.
func (r *Recording) removeAll() batch {
	b := batch{r, r.types}
	for typeURL, change := range b.types {
		change.isStale = len(r.stale[typeURL]) > 0
	}
	r.types, r.first = make(map[string]*typeChange), time.Time{}
	return b
}
