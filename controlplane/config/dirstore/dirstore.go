// Package dirstore contains the store of documents in files. It watches directories and parses changed files. While the
// current text of a document is refused, its last accepted version stays in force.
package dirstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
)

const (
	// debounce is how long the files must not change before they are read, because writes and renames arrive in bursts.
	debounce = 20 * time.Millisecond
	// maxDebounce limits the total delay if the files change continuously.
	maxDebounce = 250 * time.Millisecond
	// removalGrace is how long a file must be missing until its documents are removed. Many programs replace a file by
	// removing it first.
	removalGrace = 100 * time.Millisecond
	// emptyGrace is how long a file must be empty until its documents are removed. A program that truncates a file may
	// write it seconds later, and its policies must stay in force meanwhile.
	emptyGrace    = 2 * time.Second
	defaultRescan = 30 * time.Second
	// rescanUnwatched is the interval of scans if the operating system does not report changes of files.
	rescanUnwatched = 2 * time.Second
)

// Config configures a Store.
type Config struct {
	// Paths lists directories, which are read recursively, and files. In a directory only files with the extensions
	// .yaml, .yml and .json are read. Hidden files and temporary files of editors are skipped.
	Paths []string
	// DefaultNamespace is the namespace of documents that specify none; "default" if empty.
	DefaultNamespace string
	// Check validates each document that has no error so far (see config.Parser).
	Check func(*config.Resource) []config.Problem
	// StartsProxies is passed to the parser.
	StartsProxies bool
	// LastGood is the file that stores the last accepted versions of refused documents, so that they stay in force
	// after a restart. The file exists only while a document is refused. If empty, these versions are in force until
	// the process ends.
	LastGood string
	// OnInvalidPolicy selects the effect of a policy of which no version was ever accepted.
	OnInvalidPolicy config.OnInvalidPolicy
	// Rescan is the interval of periodic scans; 30 seconds if zero. Periodic scans find changes that the system does
	// not report, such as mounts and changes of links' targets outside the directories.
	Rescan time.Duration
	// Logger receives a record of each change and each new problem; nil discards them.
	Logger *slog.Logger
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// Store is a store of the documents in files, which it watches. If a document becomes invalid, its last accepted
// version stays in force. If Config.LastGood is set, this is so even after a restart. Removed documents are removed
// from the store.
type Store struct {
	config.Store // the resources in force
	// apply changes the embedded store.
	apply  func(put []*config.Resource, del []config.Key) (changed []config.Key)
	cfg    Config
	parser config.Parser
	log    *slog.Logger

	scanning     sync.Mutex // locked during a scan; protects the fields up to mu
	files        map[string]*trackedFile
	order        []string                // paths of files, by configured path and then by name; the slice is immutable and only replaced
	holders      map[config.Key][]string // paths of the files that have a valid version of a document
	deniers      map[config.Key][]string // paths of the files whose policy is refused and has no valid version
	owner        map[config.Key]string   // path of the file whose document is in force
	inForce      map[config.Key]*config.Resource
	scanned      map[string]*trackedFile // files that this scan read or found missing
	rescanSoon   map[string]bool         // files to read again soon
	withRetained map[string]bool         // files with documents in force that their current text does not contain
	lastAccepted lastAccepted
	running      bool // Run was called; before that, no file is written

	mu      sync.Mutex // protects report and failure, which only a scan changes; other goroutines read them
	report  storeReport
	failure string // why the files cannot be read, or ""
}

// New returns a store with the documents in cfg.Paths. It fails if a path cannot be read. Problems reports invalid
// documents.
func New(cfg Config) (*Store, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("no configuration directory is specified")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	store, apply := config.NewFileStore()
	s := &Store{
		Store: store, apply: apply, cfg: cfg, parser: config.Parser{DefaultNamespace: cfg.DefaultNamespace, Check: cfg.Check, StartsProxies: cfg.StartsProxies, OnInvalidPolicy: cfg.OnInvalidPolicy}, log: cfg.Logger,
		files: map[string]*trackedFile{}, holders: map[config.Key][]string{}, deniers: map[config.Key][]string{}, owner: map[config.Key]string{}, inForce: map[config.Key]*config.Resource{},
		scanned: map[string]*trackedFile{}, rescanSoon: map[string]bool{}, withRetained: map[string]bool{}, report: storeReport{files: map[string]fileReport{}},
		lastAccepted: lastAccepted{file: cfg.LastGood},
	}
	if found := listPaths(cfg.Paths); found.err != nil {
		return nil, fmt.Errorf("reading the configuration: %w; specify a directory or file that this user can read", found.err)
	}
	s.restore()
	s.scan(nil)
	s.endRestore()
	return s, nil
}

// Run watches the files until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	s.start()
	watcher, err := filewatch.New()
	if err != nil {
		s.log.Warn("cannot watch the configuration files for changes; scanning them periodically", "interval", rescanUnwatched, "error", err)
		return s.poll(ctx)
	}
	defer watcher.Close()
	f := &dirWatcher{store: s, watcher: watcher, rescanInterval: s.cfg.Rescan, touched: map[string]bool{}, timer: time.NewTimer(0)}
	defer f.timer.Stop()
	f.scan() // changes since New
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if f.isRelevant(event) {
				f.collectEvents(ctx, event)
				f.scan()
			}
		case err := <-watcher.Failures:
			// The queue probably overflowed and lost events, so find the changes by a scan.
			s.log.Debug("watching the configuration files failed; scanning them for changes", "error", err)
			f.scan()
		case <-f.timer.C:
			f.scan()
		}
	}
}

// start permits writing the file of last accepted versions. A store that does not run must not write it, because the
// file may belong to a running control plane.
func (s *Store) start() {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.running = true
}

func (s *Store) poll(ctx context.Context) error {
	ticker := time.NewTicker(min(rescanUnwatched, s.cfg.Rescan))
	defer ticker.Stop()
	for {
		s.scan(nil)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Synced returns a channel that is closed once all documents were read: it is already closed, because New reads the
// files.
func (s *Store) Synced() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// Health returns false and the reason if the configured paths cannot be read. The documents that were read last then
// stay in force.
func (s *Store) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure == "", s.failure
}
