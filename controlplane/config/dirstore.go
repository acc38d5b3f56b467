package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
)

const (
	// settle is how long the files have to be left alone before they are read: writing and renaming comes in bursts.
	settle = 20 * time.Millisecond
	// settleMost bounds that, for files that are never left alone.
	settleMost = 250 * time.Millisecond
	// vanishGrace is how long a file has to be gone before that is believed: many programs replace a file by removing it
	// first.
	vanishGrace = 100 * time.Millisecond
	// emptyGrace is the same for a file that is empty. Nobody removes documents that way, and a program that empties a
	// file and then writes it may take its time: a policy should not be gone meanwhile.
	emptyGrace    = 2 * time.Second
	defaultRescan = 30 * time.Second
	// rescanUnwatched is how often files are looked at where the system tells of no changes.
	rescanUnwatched = 2 * time.Second
)

// DirConfig says what a DirStore reads.
type DirConfig struct {
	// Paths are directories, read with all below them, and single files. Only files that end in .yaml, .yml and .json
	// are read of a directory; names that begin with a dot and what editors leave are passed over.
	Paths []string
	// DefaultNamespace is the namespace of documents that name none; "default" when empty.
	DefaultNamespace string
	// Check looks at each document that is good so far (see Parser).
	Check func(*Resource) []Problem
	// StartsProxies is the parser's (see Parser).
	StartsProxies bool
	// LastGood is a file to keep the last good versions of refused documents in, so that they are in force after a
	// restart too. There is none while no document is refused. Empty: they are in force until the process ends.
	LastGood string
	// Rescan is how often the files are looked at besides, in case a change was not told of; 30 seconds when zero.
	Rescan time.Duration
	// Logger gets a line for each change and each new problem; nil discards them.
	Logger *slog.Logger
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// DirStore is a store that follows the files of directories. A document that becomes bad keeps its last good version in
// force, through a restart too if there is a file to keep it in; one that is removed is removed.
type DirStore struct {
	*table
	cfg    DirConfig
	parser Parser
	log    *slog.Logger

	scanning sync.Mutex // held through a scan, for those below
	files    map[string]*trackedFile
	order    []string         // paths of files, in the order of the configured paths and then by name; never changed, only replaced
	holders  map[Key][]string // paths of the files that have a good version of a document
	owner    map[Key]string   // path of the file whose document is in force
	inForce  map[Key]*Resource
	looked   map[string]*trackedFile // that this scan read, or found gone
	waiting  map[string]bool         // files to look at again soon
	unsure   map[string]bool         // files that do not say now what they last said
	last     lastGood
	runs     bool // the files are followed; before, nothing is written

	mu      sync.Mutex // what is told; only a scan changes it
	told    told
	failing string // why the files cannot be read, or ""
}

// NewDirStore reads the files and makes the store of what is in them. A path that does not exist is an error; bad
// documents are not (see Problems).
func NewDirStore(cfg DirConfig) (*DirStore, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("no configuration directory is given")
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
	s := &DirStore{
		table: newTable(undated), cfg: cfg, parser: Parser{DefaultNamespace: cfg.DefaultNamespace, Check: cfg.Check, StartsProxies: cfg.StartsProxies}, log: cfg.Logger,
		files: map[string]*trackedFile{}, holders: map[Key][]string{}, owner: map[Key]string{}, inForce: map[Key]*Resource{},
		looked: map[string]*trackedFile{}, waiting: map[string]bool{}, unsure: map[string]bool{}, told: told{files: map[string]toldFile{}},
		last: lastGood{file: cfg.LastGood},
	}
	if found := find(cfg.Paths); found.err != nil {
		return nil, fmt.Errorf("reading configuration: %w; name a directory or file that can be read", found.err)
	}
	s.restore()
	s.scan(nil)
	s.restored()
	return s, nil
}

// Run follows the files until the context ends.
func (s *DirStore) Run(ctx context.Context) error {
	s.start()
	watcher, err := filewatch.New()
	if err != nil {
		s.log.Warn("the system does not tell of changed files; looking at them regularly instead", "every", rescanUnwatched, "err", err)
		return s.poll(ctx)
	}
	defer watcher.Close()
	var mounted <-chan struct{}
	if mounts, err := filewatch.WatchMounts(s.cfg.Paths...); err == nil { // else it is seen when the files are looked at besides
		defer mounts.Close()
		mounted = mounts.Changes
	}
	f := &follower{store: s, watcher: watcher, every: s.cfg.Rescan}
	f.scan() // what changed since New
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if f.concerns(event) {
				f.gather(ctx, event)
				f.scan()
			}
		case err := <-watcher.Failures:
			// Most likely an overflow: some events are lost, and a look at all files makes up for them.
			s.log.Debug("watching the configuration's files", "err", err)
			f.all = true
			f.scan()
		case <-mounted:
			f.all = true
			f.scan()
		case <-f.timer():
			f.scan()
		}
	}
}

// start allows that what is kept for a restart is written. A store that is only made leaves it alone: it may be that of
// another process, whose ports this one will not get.
func (s *DirStore) start() {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.runs = true
}

func (s *DirStore) poll(ctx context.Context) error {
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

// Health says whether the files can be read. While they cannot, all that they last said stays in force.
func (s *DirStore) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing == "", s.failing
}

// State is what became of a document.
type State string

// The states of a document.
const (
	InForce State = "in force"  // as it is written now
	Stale   State = "stale"     // what is written now is refused, and the last good version is in force
	Refused State = "refused"   // nothing of it is in force
	Inert   State = "no effect" // read, and of a kind that has no effect here
)

// Document tells what became of one document of a store's files.
type Document struct {
	Key   Key      `json:"resource"`
	At    Position `json:"at"`
	State State    `json:"state"`
	// Since is when what is in force was first read; zero when nothing is.
	Since time.Time `json:"since,omitzero"`
}
