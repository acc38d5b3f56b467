package lastgood

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// Recording records the accepted changes of one stream of Envoy. Its methods do not block and are safe for concurrent
// use. They have no effect after another recording was started or an error occurred.
type Recording struct {
	store *Store
	id    Identity

	// The following fields are guarded by the store's mu.
	types     map[string]*typeChange
	isStopped bool
	// isComplete: Envoy has had an answer to all its requests.
	isComplete bool
	// first and last are the times of the first and the last unsaved change.
	first, last time.Time
	isUpToDate  bool // the files are to be marked up to date
	// stale contains the resources that are missing in a file or may be older than its version, by type and name. It is
	// used only in SotW, which has one version for all resources of a type.
	stale map[string]map[string]struct{}
}

// Begin starts a recording, and resumes saving after an error unless the disk still hangs. All resources that Envoy has
// must follow, or must be those that were loaded.
func (s *Store) Begin(id Identity) *Recording {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current; old != nil {
		if old.isComplete {
			s.queue = append(s.queue, old.takeAll())
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

// IsActive reports whether changes are recorded.
func (r *Recording) IsActive() bool {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return !r.isStopped
}

// stop ends the recording and discards its changes; the caller holds the store's mu.
func (r *Recording) stop() {
	r.isStopped = true
	r.discard()
}

func (r *Recording) discard() {
	for _, change := range r.types {
		change.free()
	}
	clear(r.types)
	r.first = time.Time{}
}

// Discard discards the changes that are not saved yet.
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

// Accept records a response that Envoy accepted, except for the rejected resources. If isFull is set, the response
// contains all resources of its type. Accept takes ownership of the message, whose resources are those of the response.
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

// Invalidate records that resources of a response may be newer than those that Envoy has accepted, because Envoy
// rejected the response or did not answer it.
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

// markStale records that a resource is missing in the file or outdated; the caller holds the store's mu.
func (r *Recording) markStale(typeURL, name string) {
	if r.stale[typeURL] == nil {
		r.stale[typeURL] = make(map[string]struct{})
	}
	r.stale[typeURL][name] = struct{}{}
}

// Remove records that Envoy no longer requests resources.
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

// Complete records that Envoy has had an answer to all its requests. Resources of the types that isHeld does not report
// are removed from the files. isHeld is called while a file is written. Before Complete, changes are saved only after
// MaxDelay, or if they are large.
func (r *Recording) Complete(types []string, isHeld func(typeURL, name string) bool) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.isStopped {
		return
	}
	r.isComplete = true
	for _, typeURL := range types {
		r.change(typeURL).isHeld = func(name string) bool { return isHeld(typeURL, name) }
	}
	r.scheduleSave()
	r.store.schedule(r.store.config.Delay)
}

// MarkUpToDate records that the accepted configuration is that of the control plane at present.
func (r *Recording) MarkUpToDate() {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if !r.isStopped && r.isComplete {
		r.isUpToDate = true
		r.store.wake()
	}
}

func (r *Recording) change(typeURL string) *typeChange {
	c := r.types[typeURL]
	if c == nil {
		c = newTypeChange()
		r.types[typeURL] = c
	}
	return c
}

// scheduleSave schedules a save after a change; the caller holds the store's mu.
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

// isLarge reports whether the unsaved messages use so much memory that they are saved without delay.
func (r *Recording) isLarge() bool {
	var held int64
	for _, change := range r.types {
		held += change.held
	}
	return held > maxHeldBytes
}

// takeDue removes and returns the changes that are due, or all if force is set and Envoy's configuration is complete. It
// schedules the next save if others remain. Of an incomplete configuration it does not return listeners, so that an
// Envoy does not become ready with it. The caller holds the store's mu.
func (r *Recording) takeDue(force bool) batch {
	if len(r.types) == 0 {
		return batch{}
	}
	now, c := time.Now(), &r.store.config
	remaining := c.MaxDelay - now.Sub(r.first)
	if r.isComplete {
		remaining = min(remaining, c.Delay-now.Sub(r.last))
	}
	switch {
	case remaining <= 0 || r.isComplete && (force || r.isLarge()):
		return r.takeAll()
	case r.isLarge():
		return r.takeAllButListeners(remaining)
	}
	r.store.schedule(remaining)
	return batch{}
}

func (r *Recording) takeAllButListeners(remaining time.Duration) batch {
	listeners, first := r.types[listenerType], r.first
	delete(r.types, listenerType)
	b := r.takeAll()
	if listeners != nil {
		r.types[listenerType], r.first = listeners, first
		r.store.schedule(remaining)
	}
	return b
}

// takeAll removes and returns all changes; the caller holds the store's mu.
func (r *Recording) takeAll() batch {
	b := batch{r, r.types}
	for typeURL, change := range b.types {
		change.isStale = len(r.stale[typeURL]) > 0
	}
	r.types, r.first = make(map[string]*typeChange), time.Time{}
	return b
}
