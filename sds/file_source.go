package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// FileConfig configures a FileSource.
type FileConfig struct {
	// CertFile, KeyFile and RootFile contain the workload's certificate chain, its key, and the roots, in PEM.
	CertFile, KeyFile, RootFile string
	// Debounce is how long the files must be unchanged before they are read; default 100 ms.
	Debounce time.Duration
	Logger   *slog.Logger
	// Clock defaults to the system clock.
	Clock Clock
}

// FileSource reads the workload's identity from files that another process renews. If files are missing, malformed or
// do not match, it continues to serve the previous identity.
type FileSource struct {
	config FileConfig
	subscribers
	timeoutFS fstimeout.TimeoutFS

	mu       sync.Mutex
	material Material
	problem  error
}

// NewFileSource returns a source for config, or an error if config is incomplete. The files may be missing.
func NewFileSource(config FileConfig) (*FileSource, error) {
	if config.CertFile == "" || config.KeyFile == "" || config.RootFile == "" {
		return nil, errors.New("sds: an identity from files needs a certificate, a key and a root file")
	}
	if config.Debounce <= 0 {
		config.Debounce = defaultDebounce
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Clock == nil {
		config.Clock = systemClock{}
	}
	return &FileSource{config: config}, nil
}

// Name returns "file" and the path of the certificate.
func (s *FileSource) Name() string { return "file " + s.config.CertFile }

// Subscribe registers a function that is called after each change.
func (s *FileSource) Subscribe(notify func()) { s.add(notify) }

// NextRotation returns the zero time: another process renews the files.
func (s *FileSource) NextRotation() time.Time { return time.Time{} }

// Current returns the last valid content of the files.
func (s *FileSource) Current() Material {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.material
}

// Run watches the files until ctx ends; then it returns nil.
func (s *FileSource) Run(ctx context.Context) error {
	w := &fileWatcher{
		debounce: s.config.Debounce, clock: s.config.Clock, log: s.config.Logger, failed: func() {},
		paths: func() []string { return []string{s.config.CertFile, s.config.KeyFile, s.config.RootFile} },
		wake:  make(chan struct{}, 1),
		check: s.reload, timeoutFS: &s.timeoutFS,
	}
	s.timeoutFS.OnResume = w.trigger
	w.run(ctx)
	return nil
}

func (s *FileSource) reload() (ok bool) {
	if err := s.timeoutFS.DoFile(s.config.CertFile, func() { ok = s.apply(s.read()) }); err != nil {
		return s.apply(Material{}, err)
	}
	return ok
}

func (s *FileSource) apply(m Material, err error) (ok bool) {
	s.mu.Lock()
	if err == nil {
		err = s.checkValidity(m)
	}
	repeated := err != nil && s.problem != nil && s.problem.Error() == err.Error()
	s.problem = err
	changed := err == nil && !m.equal(s.material)
	if changed {
		s.material = m
	}
	s.mu.Unlock()
	switch {
	case changed:
		s.config.Logger.Info("loaded the identity from its files", "certificate", s.config.CertFile)
		s.notify()
	case err != nil && !repeated:
		s.config.Logger.Warn("cannot read the identity from its files", "error", err)
	}
	return err == nil
}

// checkValidity returns an error for a certificate that is expired or not yet valid (for example, from a backup) while
// the current one is valid.
func (s *FileSource) checkValidity(m Material) error {
	now, before := s.config.Clock.Now(), s.material.Leaf
	if before == nil || isValidAt(m.Leaf, now) || !isValidAt(before, now) {
		return nil
	}
	return fmt.Errorf("the certificate in %s is valid from %s to %s; the previous one, valid until %s, remains in force", s.config.CertFile,
		m.Leaf.NotBefore.UTC().Format(time.RFC3339), m.Leaf.NotAfter.UTC().Format(time.RFC3339), before.NotAfter.UTC().Format(time.RFC3339))
}

func isValidAt(leaf *x509.Certificate, now time.Time) bool {
	return !now.After(leaf.NotAfter) && !leaf.NotBefore.After(now.Add(clockSkew))
}

func (s *FileSource) read() (Material, error) {
	m, err := readKeyPair(s.config.CertFile, s.config.KeyFile)
	if err != nil {
		return Material{}, err
	}
	if m.Roots, err = readRoots(s.config.RootFile); err != nil {
		return Material{}, err
	}
	roots, err := parseCertificates(m.Roots)
	if err == nil {
		err = checkRoots(roots)
	}
	if err != nil {
		return Material{}, fmt.Errorf("%s: %w", s.config.RootFile, err)
	}
	return m, nil
}

// Health reports whether the source has an unexpired certificate.
func (s *FileSource) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.material.Leaf == nil {
		if s.problem != nil {
			return false, fmt.Sprintf("no certificate: %v", s.problem)
		}
		return false, "the certificate's files have not been read yet"
	}
	if now := s.config.Clock.Now(); now.After(s.material.Leaf.NotAfter) {
		return false, fmt.Sprintf("the certificate in %s expired at %s", s.config.CertFile, s.material.Leaf.NotAfter)
	}
	if s.problem != nil {
		return true, fmt.Sprintf("the last valid certificate is served: %v", s.problem)
	}
	return true, ""
}
