package sds

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
)

// mostAnchors bounds the roots that one giver may add.
const mostAnchors = 10_000

// anchors are roots of other trust domains, by who gave them.
type anchors struct {
	mu      sync.Mutex
	byGiver map[string][]*x509.Certificate
}

// Trust adds roots, in PEM, to those that peers' certificates may lead to, in place of those that the same giver has
// added before. One bad certificate refuses all of them, and changes nothing. Safe for concurrent use.
func (s *Server) Trust(giver string, roots []string) error {
	certs, err := parseRoots(roots)
	if err != nil {
		return fmt.Errorf("sds: %s: %w", giver, err)
	}
	s.secrets.anchors.set(giver, certs)
	s.secrets.invalidate()
	return nil
}

// CheckRoots says what is wrong with roots in PEM, if anything is.
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
	if len(certs) > mostAnchors {
		return nil, fmt.Errorf("there are %d roots, and may be %d", len(certs), mostAnchors)
	}
	return certs, nil
}

func (a *anchors) set(giver string, certs []*x509.Certificate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byGiver == nil {
		a.byGiver = make(map[string][]*x509.Certificate)
	}
	a.byGiver[giver] = certs
}

// join adds the anchors to the roots in PEM, each certificate once.
func (a *anchors) join(roots []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	var more []*x509.Certificate
	for _, giver := range sortedNames(a.byGiver) {
		more = append(more, a.byGiver[giver]...)
	}
	if len(more) == 0 {
		return roots
	}
	own, err := parseCertificates(roots)
	if err != nil { // which its source has checked
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
