package sds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// mostEntries is more files than any proxy is told of.
const mostEntries = 20_000

// store holds the secrets that streams ask for, and tells the streams when any has changed.
type store struct {
	source  Source
	log     *slog.Logger
	metrics *metrics
	clock   Clock
	watch   *watch
	crlFile string
	anchors anchors
	disks   *disks.Disks

	mu      sync.Mutex
	entries map[string]*entry
	extras  extras
	made    map[string]*secret // of the source's material, as it is now
	streams map[chan struct{}]bool
	// outlets are told of changes of the identity.
	outlets []func()
}

// extras are what is added to secrets whatever they are made of. Its generation is another one with each change.
type extras struct {
	generation int
	provider   *KeyProvider
	revoked    revocations
}

func newStore(config Config, m *metrics) *store {
	s := &store{
		source: config.Source, log: config.Logger, metrics: m, clock: config.Clock, crlFile: config.CRLFile,
		entries: make(map[string]*entry), streams: make(map[chan struct{}]bool), made: make(map[string]*secret),
		extras: extras{provider: config.KeyProvider},
	}
	s.disks = &disks.Disks{Resumed: s.resumed, Stood: m.stalls.Inc}
	s.watch = &watch{
		debounce: config.Debounce, clock: config.Clock, log: config.Logger, failed: m.watchFailures.Inc,
		paths: s.paths, check: s.reload, wake: make(chan struct{}, 1), disks: s.disks,
	}
	if s.source != nil {
		s.source.Subscribe(s.invalidate)
	}
	if s.crlFile != "" {
		s.reload()
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

// invalidate has the identity's secrets made anew, and tells of it.
func (s *store) invalidate() {
	s.mu.Lock()
	clear(s.made)
	s.tell()
	outlets := s.outlets
	s.mu.Unlock()
	for _, outlet := range outlets {
		outlet()
	}
}

// tell wakes the streams. The caller holds the lock.
func (s *store) tell() {
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
	e, fresh, err := s.entry(f)
	if err != nil {
		return err
	}
	if fresh {
		s.load(e)
		s.watch.poke()
	}
	return nil
}

// entry gives what is known of a name. It is fresh while it was never read to the end.
func (s *store) entry(f files) (e *entry, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[f.name]; e != nil {
		e.users++
		return e, e.secret == nil && e.problem == "", nil
	}
	if len(s.entries) >= mostEntries {
		return nil, false, fmt.Errorf("the secret %q is one more than the %d files that are served", f.name, mostEntries)
	}
	e = &entry{files: f, users: 1}
	s.entries[f.name] = e
	return e, true, nil
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.made[name]; known != nil {
		return known
	}
	m := s.source.Current()
	var made *secret
	var err error
	switch {
	case name == DefaultName && len(m.Chain) > 0:
		made, err = certificateSecret(name, m, s.extras.provider)
	case name == RootName && len(m.Roots) > 0:
		made, err = s.rootsOf(m)
	}
	if err != nil {
		s.log.Error("making a secret", "name", name, "error", err)
		return nil
	}
	if made != nil {
		s.made[name] = made
	}
	return made
}

// rootsOf makes the secret of the roots. The anchors belong to the workload's own domain, where domains are kept apart.
func (s *store) rootsOf(m Material) (*secret, error) {
	domains := maps.Clone(m.Domains)
	for domain, roots := range domains {
		if m.Leaf != nil && m.Leaf.URIs[0].Host == domain {
			domains[domain] = s.anchors.join(roots)
		}
	}
	return rootSecret(RootName, s.anchors.join(m.Roots), s.extras.revoked.text, domains)
}

func (s *store) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var paths []string
	if s.crlFile != "" {
		paths = append(paths, s.crlFile)
	}
	for _, e := range s.entries {
		paths = append(paths, e.paths()...)
	}
	return paths
}

// reload reads the files that were touched and says whether all of them are well.
func (s *store) reload() (well bool) {
	revoked := s.loadRevocations()
	s.mu.Lock()
	entries := slices.Collect(maps.Values(s.entries))
	s.mu.Unlock()
	changed := false
	for _, e := range entries {
		changed = s.load(e) || changed
	}
	s.mu.Lock()
	well = s.extras.revoked.problem == ""
	for _, e := range s.entries {
		well = well && e.problem == ""
	}
	if changed && !revoked {
		s.tell()
	}
	s.mu.Unlock()
	if revoked {
		s.invalidate()
	}
	return well
}

// resumed reads what changed while a file system did not answer, and tells of what it has answered.
func (s *store) resumed() {
	s.invalidate()
	s.watch.poke()
}

// loadRevocations reads the revocation lists.
func (s *store) loadRevocations() (changed bool) {
	if s.crlFile == "" {
		return false
	}
	took := false
	if err := s.disks.Around(s.crlFile, func() {
		read, err := readRevocations(s.crlFile)
		s.mu.Lock()
		defer s.mu.Unlock()
		took = s.revoke(read, err)
	}); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.revoke(revocations{}, err)
	}
	return took
}

// revoke takes revocation lists over, and says whether they are others. An empty file, as one is that is about to be written or
// for which the disk had no room, takes away none that is in force. The caller holds the lock.
func (s *store) revoke(read revocations, err error) (changed bool) {
	old := s.extras.revoked
	if errors.Is(err, errEmpty) && !old.inForce(s.clock.Now()) {
		err = nil
	}
	switch {
	case err != nil:
		if err.Error() != old.problem {
			s.metrics.secretFailures.Inc()
			s.log.Warn("the revocation lists cannot be read", "error", err, "lastGoodListsServed", len(old.lists))
		}
		s.extras.revoked.problem = err.Error()
		return false
	case bytes.Equal(read.text, old.text):
		s.extras.revoked.problem = ""
		return false
	}
	s.log.Info("revocation lists read", "file", s.crlFile, "lists", len(read.lists))
	s.extras.revoked = read
	s.extras.generation++
	return true
}

// providerRefused gives Envoy the keys themselves, where that is allowed and it has no such accelerator: Envoy knows how to
// do without one that it was built for, and refuses others.
func (s *store) providerRefused(reason string) {
	s.mu.Lock()
	provider := s.extras.provider
	if provider == nil || !provider.Fallback || !strings.Contains(reason, "private key provider") {
		s.mu.Unlock()
		return
	}
	s.extras.provider = nil
	s.extras.generation++
	s.mu.Unlock()
	s.log.Warn("this Envoy has no such private key provider, and gets the keys themselves", "provider", provider.Name)
	s.reload()
	s.invalidate()
}

// load reads one resource's files and says whether it changed. What cannot be read, or does not fit together, leaves
// the last good secret in place. Nobody is kept from the others meanwhile.
func (s *store) load(e *entry) (changed bool) {
	took := false
	if err := s.disks.Around(e.paths()[0], func() { took = s.read(e) }); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.take(e, false, err)
	}
	return took
}

// read is called for one file of a directory at a time.
func (s *store) read(e *entry) (changed bool) {
	s.mu.Lock()
	next, x := *e, s.extras
	s.mu.Unlock()
	changed, err := next.refresh(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		e.material, e.secret, e.stamps, e.extras = next.material, next.secret, next.stamps, next.extras
	}
	return s.take(e, changed, err)
}

// take notes what came of reading a resource's files. The caller holds the lock.
func (s *store) take(e *entry, changed bool, err error) bool {
	if err != nil {
		if problem := err.Error(); problem != e.problem { // once a cause, not once an attempt
			e.problem = problem
			s.metrics.secretFailures.Inc()
			s.log.Warn("a secret cannot be read from its files", "name", e.name, "error", err, "lastGoodServed", e.secret != nil)
		}
		return false
	}
	e.problem = ""
	if changed {
		s.log.Info("secret read from its files", "name", e.name, "version", e.secret.version)
	}
	return changed
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
	if problem := s.extras.revoked.health(s.crlFile, s.clock.Now()); problem != "" {
		problems = append(problems, problem)
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
			infos = append(infos, describeChain(e.name, e.cert, e.material))
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
