package lastgood

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxUnsavedBytes is the total size of unsaved messages above which the store saves them without delay. It limits the
// memory of the store.
const maxUnsavedBytes = 8 << 20

// Store stores the configuration that Envoy has accepted. Its methods are safe for concurrent use. Except Close, they
// do not block, because only the store's goroutine uses the disk.
type Store struct {
	config  Config
	due     chan struct{} // contains a value when there are changes to save
	loads   chan func()   // calls of load for the store's goroutine
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the store's goroutine returns

	// dir is nil if no directory is usable. Only the store's goroutine uses it.
	dir *directory

	mu      sync.Mutex
	current *Recording
	queue   []batch // unsaved changes of previous recordings
	timer   *time.Timer
	// nextSave is the earliest time of the next save, which the size of the previous save determines.
	nextSave time.Time
	isHung   bool // a disk operation has not returned within HangTimeout
	// isUnusable: no directory is usable.
	isUnusable bool
	status     Status
}

// batch contains the changes of a recording that the store saves together, by type URL.
type batch struct {
	recording *Recording
	types     map[string]*typeChange
}

// Status is the state of a store.
type Status struct {
	// Directory is the path of the directory. It is empty if no directory is usable. Bytes is the total size of the
	// files.
	Directory string `json:"directory,omitempty"`
	Bytes     int64  `json:"bytes"`
	// Saved is the time of the last save.
	Saved time.Time `json:"saved,omitzero"`
	// Reason is the reason why saving has stopped. It is empty if saving has not stopped.
	Reason string `json:"reason,omitempty"`
	// Failures counts failed and hung disk operations.
	Failures uint64 `json:"failures"`
	// Withheld lists the resources that the store does not store, because they contain secrets or their names are too
	// long.
	Withheld []string `json:"withheld,omitempty"`
}

// maxWithheld limits the resources in Status.Withheld; the oldest are dropped.
const maxWithheld = 16

// Open starts a store. The store opens its directory asynchronously, because the disk may hang. If no directory is
// usable, the store logs the reason, and neither saves nor loads anything.
func Open(c Config) *Store {
	c.setDefaults()
	s := &Store{config: c, due: make(chan struct{}, 1), loads: make(chan func()), closing: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// Close saves the unsaved changes and stops the store. It does not wait for a hung disk.
func (s *Store) Close() {
	close(s.closing)
	for {
		select {
		case <-s.done:
			return
		case <-time.After(s.config.HangTimeout):
			s.mu.Lock()
			isHung := s.isHung
			s.mu.Unlock()
			if isHung {
				return
			}
		}
	}
}

func (s *Store) run() {
	defer close(s.done)
	s.watchDisk(s.open)
	if s.dir != nil {
		defer s.dir.close()
	}
	for {
		select {
		case <-s.due:
			s.watchDisk(func() { s.save(false) })
		case load := <-s.loads:
			s.watchDisk(load)
		case <-s.closing:
			s.watchDisk(func() { s.save(true) })
			return
		}
	}
}

func (s *Store) open() {
	if s.config.beforeOpen != nil {
		s.config.beforeOpen()
	}
	dir, err := openFirst(s.config.Dirs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.isUnusable = true
		s.status.Reason = err.Error()
		s.status.Failures++
		if s.current != nil {
			s.current.stop()
		}
		s.config.Logger.Warn("the last accepted configuration is not stored; an Envoy that starts will wait for a control plane",
			"error", err, "remedy", "make the directory writable, or configure another one")
		return
	}
	s.dir = dir
	s.status.Directory, s.status.Bytes = dir.path, dir.size("")
}

// watchDisk calls do, which uses the disk. If do has not returned after HangTimeout, watchDisk stops the recording.
func (s *Store) watchDisk(do func()) {
	timer := time.AfterFunc(s.config.HangTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isHung = true
		s.fail(errHung)
	})
	do()
	if timer.Stop() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isHung = false
	s.config.Logger.Info("the disk of the last accepted configuration works again; saving resumes with Envoy's next stream")
}

// fail stops the recording after an error. The caller holds mu.
func (s *Store) fail(err error) {
	s.config.Logger.Warn("the last accepted configuration is no longer saved; the files do not change, and Envoy still receives its configuration",
		"directory", s.status.Directory, "error", err, "remedy", "free disk space, check the file system, or configure another directory or size limit")
	s.status.Failures++
	s.status.Reason = err.Error()
	if s.current != nil {
		s.current.stop()
	}
}

// IsUsable returns false if no directory is usable. It returns true while the store has not opened a directory yet.
func (s *Store) IsUsable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isUnusable
}

// Status returns the state of the store.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Withheld = slices.Clone(st.Withheld)
	return st
}

// Load returns a channel that receives the stored configuration of the proxy id. It receives nil if nothing is stored,
// or if a file is damaged or cannot be read. If ctx ends or the store is closed first, the channel receives nothing.
// The receiver must close the snapshot.
func (s *Store) Load(ctx context.Context, id Identity) <-chan *Snapshot {
	result := make(chan *Snapshot)
	go func() {
		loaded := make(chan *Snapshot, 1)
		select {
		case s.loads <- func() { loaded <- s.load(id) }:
		case <-ctx.Done():
			return
		case <-s.done:
			return
		}
		snapshot := <-loaded
		select {
		case result <- snapshot:
		case <-ctx.Done():
			if snapshot != nil {
				_ = snapshot.Close()
			}
		}
	}()
	return result
}

func (s *Store) load(id Identity) *Snapshot {
	if s.dir == nil {
		return nil
	}
	s.save(true)
	snapshot, err := s.dir.load(id)
	if err != nil {
		s.config.Logger.Warn("the last accepted configuration cannot be used; Envoy waits for a control plane", "error", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status.Failures++
	}
	return snapshot
}

// schedule schedules a save after the duration. It cancels the save that was scheduled before. The caller holds mu.
func (s *Store) schedule(after time.Duration) {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(after, s.wake)
}

// wake makes the store's goroutine save the changes that are due.
func (s *Store) wake() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// save writes the changes that are due. If force is set, it writes all changes of a complete configuration, without
// regard to maxWriteRate.
func (s *Store) save(force bool) {
	s.mu.Lock()
	batches, isUpToDate := s.queue, false
	s.queue = nil
	if r := s.current; r != nil {
		isUpToDate, r.isUpToDate = r.isUpToDate, false
		batches = append(batches, r.removeDue(force || isUpToDate))
	}
	s.mu.Unlock()
	written, err := s.saveBatches(batches)
	if err == nil && isUpToDate && s.dir != nil {
		err = s.dir.markUpToDate(s.config.Now())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if written > 0 {
		s.nextSave = time.Now().Add(pauseAfter(written))
	}
	if err != nil {
		s.fail(err)
	}
}

// pauseAfter returns the minimum time until the next save after a save of written bytes.
func pauseAfter(written int64) time.Duration {
	return min(time.Duration(written/maxWriteRate)*time.Second, maxPause)
}

// saveBatches writes the files of the batches and frees their messages. It returns the size of the written files.
func (s *Store) saveBatches(batches []batch) (written int64, err error) {
	if s.dir != nil {
		before := s.dir.written
		defer func() { written = s.dir.written - before }()
	}
	for _, b := range batches {
		err = s.saveBatch(b, err)
	}
	return 0, err
}

// saveBatch writes the files of a batch and frees its messages. It writes listeners last. failed is the error of an
// earlier batch. If it is not nil, saveBatch only frees the messages, and returns failed.
func (s *Store) saveBatch(b batch, failed error) error {
	types := slices.Sorted(maps.Keys(b.types))
	if i := slices.Index(types, listenerType); i >= 0 {
		types = append(slices.Delete(types, i, i+1), listenerType)
	}
	for _, typeURL := range types {
		change := b.types[typeURL]
		if failed == nil && s.dir != nil {
			var withheld map[string]string
			withheld, failed = s.dir.save(&s.config, header{b.recording.id, typeURL}, change)
			s.recordWithheld(b.recording, typeURL, withheld)
		}
		change.free()
	}
	if len(types) > 0 && failed == nil && s.dir != nil {
		bytes := s.dir.size("")
		s.mu.Lock()
		s.status.Bytes, s.status.Saved = bytes, s.config.Now()
		s.mu.Unlock()
	}
	return failed
}

// recordWithheld logs the resources that must not be stored, adds them to the status, and marks them as missing in the
// file.
func (s *Store) recordWithheld(r *Recording, typeURL string, withheld map[string]string) {
	if len(withheld) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(withheld)) {
		s.logWithheld(typeURL, name, withheld[name])
		r.markStale(typeURL, name)
	}
}

// logWithheld adds a resource that is not stored to the status. It logs each resource once, except SDS secrets, which
// it does not log. The caller holds mu.
func (s *Store) logWithheld(typeURL, name, why string) {
	what := fmt.Sprintf("%s %.200s", typeURL, name)
	if typeURL == secretType || slices.Contains(s.status.Withheld, what) {
		return
	}
	s.config.Logger.Warn("a resource is not stored; an Envoy that starts while no control plane responds will lack this resource",
		"resource", what, "reason", why, "remedy", "move the secret to an SDS resource, or shorten the name")
	if len(s.status.Withheld) == maxWithheld {
		s.status.Withheld = s.status.Withheld[1:]
	}
	s.status.Withheld = append(s.status.Withheld, what)
}
