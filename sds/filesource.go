package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// FileConfig is what a FileSource needs.
type FileConfig struct {
	// CertFile, KeyFile and RootFile hold the workload's certificate chain, its key, and the roots, in PEM.
	CertFile, KeyFile, RootFile string
	// Debounce is how long the files have to be quiet after a change before they are read; zero is 100 ms.
	Debounce time.Duration
	Logger   *slog.Logger
	// Clock is time; nil is the machine's.
	Clock Clock
}

// FileSource takes the workload's identity from files that somebody else renews. Files that are missing, broken, or do
// not belong together change nothing.
type FileSource struct {
	config FileConfig
	subscribers
	disks disks.Disks

	mu       sync.Mutex
	material Material
	problem  error
}

// NewFileSource checks the configuration; the files need not be there yet.
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
		config.Clock = SystemClock{}
	}
	return &FileSource{config: config}, nil
}

// Name is the certificate's file.
func (s *FileSource) Name() string { return "file " + s.config.CertFile }

// Subscribe registers a function to be called after each change.
func (s *FileSource) Subscribe(notify func()) { s.add(notify) }

// NextRotation is not known: somebody else renews the files.
func (s *FileSource) NextRotation() time.Time { return time.Time{} }

// Current is what the files held when they were last good.
func (s *FileSource) Current() Material {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.material
}

// Run follows the files until the context ends; then it returns nil.
func (s *FileSource) Run(ctx context.Context) error {
	w := &watch{
		debounce: s.config.Debounce, clock: s.config.Clock, log: s.config.Logger, failed: func() {},
		paths: func() []string { return []string{s.config.CertFile, s.config.KeyFile, s.config.RootFile} },
		wake:  make(chan struct{}, 1),
		check: s.check, disks: &s.disks,
	}
	s.disks.Resumed = w.poke
	w.run(ctx)
	return nil
}

func (s *FileSource) check() (well bool) {
	took := false
	if err := s.disks.Around(s.config.CertFile, func() { took = s.take(s.read()) }); err != nil {
		return s.take(Material{}, err)
	}
	return took
}

func (s *FileSource) take(m Material, err error) (well bool) {
	s.mu.Lock()
	if err == nil {
		err = s.worse(m)
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
		s.config.Logger.Info("identity read from files", "certificate", s.config.CertFile)
		s.notify()
	case err != nil && !repeated:
		s.config.Logger.Warn("the identity cannot be read from its files", "error", err)
	}
	return err == nil
}

// worse refuses a certificate that has ended, as one out of a backup has, or has not begun, while that of before is good:
// nobody would take it.
func (s *FileSource) worse(m Material) error {
	now, before := s.config.Clock.Now(), s.material.Leaf
	if before == nil || validAt(m.Leaf, now) || !validAt(before, now) {
		return nil
	}
	return fmt.Errorf("the certificate in %s is valid from %s to %s, that of before it is good until %s", s.config.CertFile,
		m.Leaf.NotBefore.UTC().Format(time.RFC3339), m.Leaf.NotAfter.UTC().Format(time.RFC3339), before.NotAfter.UTC().Format(time.RFC3339))
}

func validAt(leaf *x509.Certificate, now time.Time) bool {
	return !now.After(leaf.NotAfter) && !leaf.NotBefore.After(now.Add(clockSkew))
}

func (s *FileSource) read() (Material, error) {
	m, err := readPair(s.config.CertFile, s.config.KeyFile)
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

// Health says whether there is a certificate that has not expired.
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
		return true, fmt.Sprintf("the last good certificate is served: %v", s.problem)
	}
	return true, ""
}
