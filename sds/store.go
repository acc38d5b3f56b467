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

	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// maxFileSecrets limits the number of file secrets. It exceeds the number of files in any proxy's configuration.
const maxFileSecrets = 20_000

// store contains the secrets to which streams subscribe, and notifies the streams of changes.
type store struct {
	source     Source
	log        *slog.Logger
	metrics    *metrics
	clock      Clock
	watcher    *fileWatcher
	crlFile    string
	extraRoots extraRoots
	timeoutFS  *fstimeout.TimeoutFS

	mu              sync.Mutex
	fileSecrets     map[string]*fileSecret
	extras          extras
	identitySecrets map[string]*secret // cache of the secrets built from the source's current Material
	streams         map[chan struct{}]bool
	denied          deniedLists
	// denyProblem explains why certificates that the control plane revoked are still accepted. It is empty if no
	// certificates are revoked, or if Envoy rejects them.
	denyProblem string
	// onIdentityChange contains functions that are called after each change of the identity.
	onIdentityChange []func()
}

// extras are settings that affect all secrets. Each change increments generation.
type extras struct {
	generation int
	provider   *KeyProvider
	revoked    revocations
}

func newStore(config Config, m *metrics) *store {
	s := &store{
		source: config.Source, log: config.Logger, metrics: m, clock: config.Clock, crlFile: config.CRLFile,
		fileSecrets: make(map[string]*fileSecret), streams: make(map[chan struct{}]bool), identitySecrets: make(map[string]*secret),
		extras: extras{provider: config.KeyProvider},
	}
	s.timeoutFS = &fstimeout.TimeoutFS{OnResume: s.handleFSResumed, OnHang: m.stalls.Inc}
	s.watcher = &fileWatcher{
		debounce: config.Debounce, clock: config.Clock, log: config.Logger, failed: m.watchFailures.Inc,
		paths: s.paths, check: s.reload, wake: make(chan struct{}, 1), timeoutFS: s.timeoutFS,
	}
	if s.source != nil {
		s.source.Subscribe(s.invalidate)
	}
	if s.crlFile != "" {
		s.reload()
	}
	return s
}

func (s *store) run(ctx context.Context) { s.watcher.run(ctx) }

// addStream returns a channel that receives after each change.
func (s *store) addStream() chan struct{} {
	changes := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[changes] = true
	return changes
}

func (s *store) removeStream(changes chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, changes)
}

// invalidate clears the cache of the identity's secrets and notifies the subscribers.
func (s *store) invalidate() {
	s.mu.Lock()
	clear(s.identitySecrets)
	s.notifyStreams()
	callbacks := s.onIdentityChange
	s.mu.Unlock()
	for _, callback := range callbacks {
		callback()
	}
}

// notifyStreams notifies the streams of a change. The caller holds s.mu.
func (s *store) notifyStreams() {
	for changes := range s.streams {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
}

// acquire adds a reference to a secret. It returns an error if the name can never be served.
func (s *store) acquire(name string) error {
	if name == DefaultName || name == RootName {
		if s.source == nil {
			return fmt.Errorf("the secret %q cannot be served: no source of workload certificates is configured", name)
		}
		return nil
	}
	f, err := parseName(name)
	if err != nil {
		return err
	}
	e, fresh, err := s.addReference(f)
	if err != nil {
		return err
	}
	if fresh {
		s.loadSecret(e)
		s.watcher.trigger()
	}
	return nil
}

// addReference adds a reference to the file secret of f. fresh reports whether its files have not been read yet.
func (s *store) addReference(f secretFiles) (e *fileSecret, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.fileSecrets[f.name]; e != nil {
		e.refs++
		return e, e.secret == nil && e.problem == "", nil
	}
	if len(s.fileSecrets) >= maxFileSecrets {
		return nil, false, fmt.Errorf("the secret %q exceeds the limit of %d files", f.name, maxFileSecrets)
	}
	e = &fileSecret{secretFiles: f, refs: 1}
	s.fileSecrets[f.name] = e
	return e, true, nil
}

// release removes the reference that acquire added.
func (s *store) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.fileSecrets[name]
	if e == nil {
		return
	}
	if e.refs--; e.refs == 0 {
		delete(s.fileSecrets, name)
		s.watcher.trigger()
	}
}

// lookup returns a secret, or nil if it is not available yet.
func (s *store) lookup(name string) *secret {
	if name == DefaultName || name == RootName {
		return s.identitySecret(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.fileSecrets[name]; e != nil {
		return e.secret
	}
	return nil
}

func (s *store) identitySecret(name string) *secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.identitySecrets[name]; known != nil {
		return known
	}
	m := s.source.Current()
	var made *secret
	var err error
	switch {
	case name == DefaultName && len(m.Chain) > 0:
		made, err = newCertificateSecret(name, m, s.extras.provider)
	case name == RootName && len(m.Roots) > 0:
		made, err = s.buildRootsSecret(m)
	}
	if err != nil {
		s.log.Error("cannot build a secret for Envoy from the workload's certificates", "name", name, "error", err)
		return nil
	}
	if made != nil {
		s.identitySecrets[name] = made
	}
	return made
}

// buildRootsSecret returns the secret ROOTCA, which contains m's roots and the extra roots. If m has roots per trust
// domain, it adds the extra roots to the workload's trust domain.
func (s *store) buildRootsSecret(m Material) (*secret, error) {
	domains := maps.Clone(m.Domains)
	for domain, roots := range domains {
		if m.Leaf != nil && m.Leaf.URIs[0].Host == domain {
			domains[domain] = s.extraRoots.mergeWith(roots)
		}
	}
	roots := s.extraRoots.mergeWith(m.Roots)
	lists, leafOnly := s.addDenied(roots)
	context := newValidationContext(roots, lists)
	context.OnlyVerifyLeafCertCrl = leafOnly
	return newValidationSecret(RootName, context, domains)
}

func (s *store) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var paths []string
	if s.crlFile != "" {
		paths = append(paths, s.crlFile)
	}
	for _, e := range s.fileSecrets {
		paths = append(paths, e.paths()...)
	}
	return paths
}

// reload reads the CRL file and the changed files of secrets. It notifies the streams if any content changed, and
// reports whether all files are valid.
func (s *store) reload() (ok bool) {
	revoked := s.loadRevocations()
	s.mu.Lock()
	entries := slices.Collect(maps.Values(s.fileSecrets))
	s.mu.Unlock()
	changed := false
	for _, e := range entries {
		changed = s.loadSecret(e) || changed
	}
	s.mu.Lock()
	ok = s.extras.revoked.problem == ""
	for _, e := range s.fileSecrets {
		ok = ok && e.problem == ""
	}
	if changed && !revoked {
		s.notifyStreams()
	}
	s.mu.Unlock()
	if revoked {
		s.invalidate()
	}
	return ok
}

// handleFSResumed is called when a hung file system responds again. It notifies the streams and reloads the files.
func (s *store) handleFSResumed() {
	s.invalidate()
	s.watcher.trigger()
}

// loadRevocations reads the CRL file and reports whether the lists changed.
func (s *store) loadRevocations() (changed bool) {
	if s.crlFile == "" {
		return false
	}
	if err := s.timeoutFS.DoFile(s.crlFile, func() {
		read, err := readRevocations(s.crlFile)
		s.mu.Lock()
		defer s.mu.Unlock()
		changed = s.setRevocations(read, err)
	}); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.setRevocations(revocations{}, err)
	}
	return changed
}

// setRevocations applies the lists in read, and reports whether they differ from the previous lists. On err, the
// previous lists remain in force. While lists are in force, an empty file is an error: a process may be about to write
// it, or the disk may be full. The caller holds s.mu.
func (s *store) setRevocations(read revocations, err error) (changed bool) {
	old := s.extras.revoked
	if errors.Is(err, errEmpty) && !old.isInForce(s.clock.Now()) {
		err = nil
	}
	switch {
	case err != nil:
		if err.Error() != old.problem {
			s.metrics.secretFailures.Inc()
			s.log.Warn("cannot read the revocation lists", "error", err, "lastGoodListsServed", len(old.lists))
		}
		s.extras.revoked.problem = err.Error()
		return false
	case bytes.Equal(read.text, old.text):
		s.extras.revoked.problem = ""
		return false
	}
	s.log.Info("loaded the revocation lists", "file", s.crlFile, "lists", len(read.lists))
	s.extras.revoked = read
	s.extras.generation++
	return true
}

// disableProvider is called with the reason of a NACK. If Envoy rejected the private key provider and Fallback is set,
// it sends the keys without the provider. Envoy's own fallback works only if Envoy contains the provider's extension.
func (s *store) disableProvider(reason string) {
	s.mu.Lock()
	provider := s.extras.provider
	if provider == nil || !provider.Fallback || !strings.Contains(reason, "private key provider") {
		s.mu.Unlock()
		return
	}
	s.extras.provider = nil
	s.extras.generation++
	s.mu.Unlock()
	s.log.Warn("this Envoy does not support the private key provider; the agent sends the private keys to Envoy instead", "provider", provider.Name)
	s.reload()
	s.invalidate()
}

// loadSecret reads the files of one resource and reports whether the secret changed. If the files are unreadable or do
// not match, the last valid secret is served. It does not hold s.mu while it reads.
func (s *store) loadSecret(e *fileSecret) (changed bool) {
	if err := s.timeoutFS.DoFile(e.paths()[0], func() { changed = s.readSecret(e) }); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.recordResult(e, false, err)
	}
	return changed
}

// readSecret reads the files of one resource and reports whether the secret changed. loadSecret calls it through
// timeoutFS, which makes one call per directory at a time.
func (s *store) readSecret(e *fileSecret) (changed bool) {
	s.mu.Lock()
	next, x := *e, s.extras
	s.mu.Unlock()
	changed, err := next.refresh(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		e.material, e.secret, e.stamps, e.extrasGeneration = next.material, next.secret, next.stamps, next.extrasGeneration
	}
	return s.recordResult(e, changed, err)
}

// recordResult records the result of reading a resource's files. The caller holds s.mu.
func (s *store) recordResult(e *fileSecret, changed bool, err error) bool {
	if err != nil {
		if problem := err.Error(); problem != e.problem { // log once per cause, not for each attempt
			e.problem = problem
			s.metrics.secretFailures.Inc()
			s.log.Warn("cannot read a secret from its files", "name", e.name, "error", err, "lastGoodServed", e.secret != nil)
		}
		return false
	}
	e.problem = ""
	if changed {
		s.log.Info("loaded a secret from its files", "name", e.name, "version", e.secret.version)
	}
	return changed
}

func (s *store) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var problems []string
	for _, e := range s.fileSecrets {
		if e.problem != "" {
			problems = append(problems, fmt.Sprintf("secret %s: %s", e.name, e.problem))
		}
	}
	if problem := s.extras.revoked.describeProblem(s.crlFile, s.clock.Now()); problem != "" {
		problems = append(problems, problem)
	}
	if s.denyProblem != "" {
		problems = append(problems, s.denyProblem)
	}
	slices.Sort(problems)
	return problems
}

func (s *store) fileCertificates() []CertificateInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []CertificateInfo
	for _, e := range s.fileSecrets {
		switch {
		case e.secret == nil || e.name == rootPrefix+systemRoot: // not listed: the system has more than a hundred roots
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
