package sds

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
)

// maxExtraRoots limits the number of roots per origin.
const maxExtraRoots = 10_000

// extraRoots contains the roots that are trusted in addition to the Source's roots. The map's key is the origin, for
// example the control plane.
type extraRoots struct {
	mu       sync.Mutex
	byOrigin map[string][]*x509.Certificate
}

// SetExtraRoots sets additional trusted roots (PEM) for peers' certificates. origin names the component that supplied
// them, for example the control plane. The roots replace the previous roots of the same origin. If a certificate is
// invalid, it returns an error and changes nothing. Safe for concurrent use.
func (s *Server) SetExtraRoots(origin string, roots []string) error {
	certs, err := parseRoots(roots)
	if err != nil {
		return fmt.Errorf("sds: %s: %w", origin, err)
	}
	s.secrets.extraRoots.set(origin, certs)
	s.secrets.invalidate()
	return nil
}

// CheckRoots returns an error if roots (PEM) contains an invalid root, or too many.
func CheckRoots(roots []string) error {
	_, err := parseRoots(roots)
	return err
}

func parseRoots(roots []string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for i, text := range roots {
		more, err := parseCertificates([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("root %d: %w", i+1, err)
		}
		if err := checkRoots(more); err != nil {
			return nil, err
		}
		certs = append(certs, more...)
	}
	if len(certs) > maxExtraRoots {
		return nil, fmt.Errorf("there are %d roots; the limit is %d", len(certs), maxExtraRoots)
	}
	return certs, nil
}

func (a *extraRoots) set(origin string, certs []*x509.Certificate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byOrigin == nil {
		a.byOrigin = make(map[string][]*x509.Certificate)
	}
	a.byOrigin[origin] = certs
}

// mergeWith returns roots (PEM) and the extra roots, each certificate once.
func (a *extraRoots) mergeWith(roots []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	var more []*x509.Certificate
	for _, origin := range sortedNames(a.byOrigin) {
		more = append(more, a.byOrigin[origin]...)
	}
	if len(more) == 0 {
		return roots
	}
	own, err := parseCertificates(roots)
	if err != nil { // cannot happen: the source has verified them
		return roots
	}
	return encodeCertificates(append(own, more...))
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
