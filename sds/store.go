package sds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// store holds the secrets that streams ask for, and tells the streams when any has changed.
type store struct {
	source  Source
	log     *slog.Logger
	metrics *metrics
	watch   *watch

	mu      sync.Mutex
	entries map[string]*entry
	streams map[chan struct{}]bool
}

// entry is one file resource that somebody has asked for.
type entry struct {
	files
	users    int
	material Material
	secret   *secret // the last good one; nil before the first
	problem  string
}

func newStore(config Config, m *metrics) *store {
	s := &store{
		source: config.Source, log: config.Logger, metrics: m,
		entries: make(map[string]*entry), streams: make(map[chan struct{}]bool),
	}
	s.watch = &watch{
		debounce: config.Debounce, clock: config.Clock, log: config.Logger, failed: m.watchFailures.Inc,
		paths: s.paths, check: s.reload, wake: make(chan struct{}, 1),
	}
	if s.source != nil {
		s.source.Subscribe(s.changed)
	}
	return s
}

func (s *store) run(ctx context.Context) { s.watch.run(ctx) }

// join gives a channel that receives whenever something has changed.
func (s *store) join() chan struct{} {
	changes := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[changes] = true
	return changes
}

func (s *store) leave(changes chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, changes)
}

func (s *store) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for changes := range s.streams {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
}

// acquire begins to look after a name. An error says that there can never be such a secret.
func (s *store) acquire(name string) error {
	if name == DefaultName || name == RootName {
		if s.source == nil {
			return fmt.Errorf("the secret %q is not served here: there is no source of identities", name)
		}
		return nil
	}
	f, err := parseName(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil {
		e.users++
		return nil
	}
	e := &entry{files: f, users: 1}
	s.entries[name] = e
	s.load(e)
	s.watch.poke()
	return nil
}

// release ends what acquire began.
func (s *store) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	if e == nil {
		return
	}
	if e.users--; e.users == 0 {
		delete(s.entries, name)
		s.watch.poke()
	}
}

// get gives a secret, or nil while it is not there.
func (s *store) get(name string) *secret {
	if name == DefaultName || name == RootName {
		return s.identity(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil {
		return e.secret
	}
	return nil
}

func (s *store) identity(name string) *secret {
	m := s.source.Current()
	var made *secret
	var err error
	switch {
	case name == DefaultName && len(m.Chain) > 0:
		made, err = certificateSecret(name, m)
	case name == RootName && len(m.Roots) > 0:
		made, err = rootSecret(name, m.Roots)
	}
	if err != nil {
		s.log.Error("making a secret", "name", name, "error", err)
		return nil
	}
	return made
}

func (s *store) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var paths []string
	for _, e := range s.entries {
		paths = append(paths, e.paths()...)
	}
	return paths
}

// reload reads all files anew and says whether all of them are well.
func (s *store) reload() (well bool) {
	s.mu.Lock()
	any := false
	well = true
	for _, e := range s.entries {
		any = s.load(e) || any
		well = well && e.problem == ""
	}
	s.mu.Unlock()
	if any {
		s.changed()
	}
	return well
}

// load reads one resource's files and says whether it changed. What cannot be read, or does not fit together, leaves
// the last good secret in place. The caller holds the lock.
func (s *store) load(e *entry) (changed bool) {
	m, err := e.read()
	if err == nil && e.secret != nil && m.equal(e.material) {
		e.problem = ""
		return false
	}
	var made *secret
	if err == nil {
		made, err = e.files.secret(m)
	}
	if err != nil {
		if problem := err.Error(); problem != e.problem { // once a cause, not once an attempt
			e.problem = problem
			s.metrics.secretFailures.Inc()
			s.log.Warn("a secret cannot be read from its files", "name", e.name, "error", err, "lastGoodServed", e.secret != nil)
		}
		return false
	}
	e.material, e.secret, e.problem = m, made, ""
	s.log.Info("secret read from its files", "name", e.name, "version", made.version)
	return true
}

func (s *store) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var problems []string
	for _, e := range s.entries {
		if e.problem != "" {
			problems = append(problems, fmt.Sprintf("secret %s: %s", e.name, e.problem))
		}
	}
	slices.Sort(problems)
	return problems
}

func (s *store) fileCertificates() []CertificateInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []CertificateInfo
	for _, e := range s.entries {
		switch {
		case e.secret == nil || e.name == rootPrefix+systemRoot: // the system's roots are more than a hundred
		case e.material.Leaf != nil:
			infos = append(infos, describeCertificate(e.name, e.cert, e.material.Leaf))
		default:
			roots, _ := parseCertificates(e.material.Roots)
			for _, root := range roots {
				infos = append(infos, describeCertificate(e.name, e.roots, root))
			}
		}
	}
	slices.SortStableFunc(infos, func(a, b CertificateInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos
}
