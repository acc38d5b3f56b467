package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// serverTTL is the life of the control plane's own certificate, which is renewed when half of it is over.
const serverTTL = 24 * time.Hour

// serverNames are the names by which agents know a control plane: Istio's, and this machine's.
func serverNames() []string {
	return []string{
		"istiod.istio-system.svc", "istiod.istio-system.svc.cluster.local", "pilotfish", "localhost", "127.0.0.1", "::1",
	}
}

// ServerTLS is the configuration of the control plane's TLS port: a certificate of this authority for the usual names of
// a control plane and for those given (DNS names and IP addresses), renewed before it ends; client certificates of the
// mesh are verified where there are any; HTTP/2.
func (a *Authority) ServerTLS(names ...string) *tls.Config {
	own := &serverCertificate{authority: a, names: cleanNames(append(serverNames(), names...))}
	// The first certificate is made now: the first client need not wait for it, and what is wrong is logged at once.
	_, _ = own.get(nil)
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2"},
		ClientAuth:     tls.VerifyClientCertIfGiven,
		GetCertificate: own.get,
		Time:           a.now,
	}
	// Whom to believe changes when roots are rotated.
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, a.signing().pool
		return now, nil
	}
	return config
}

// cleanNames drops repetitions and emptiness.
func cleanNames(names []string) []string {
	for i, name := range names {
		names[i] = strings.Trim(strings.TrimSpace(name), "[]")
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// ServerCertificate makes a certificate for a server of the control plane with these names, and no other.
func (a *Authority) ServerCertificate(names ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the control plane's key: %w", err)
	}
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range cleanNames(slices.Clone(names)) {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	by := a.signing().server
	leaf, err := a.signWith(by, template, key.Public(), serverTTL)
	if err != nil {
		return nil, fmt.Errorf("the control plane's certificate: %w", err)
	}
	chain := [][]byte{leaf.Raw}
	for _, cert := range by.chain() {
		chain = append(chain, cert.Raw)
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

// serverCertificate keeps the control plane's certificate fresh.
type serverCertificate struct {
	authority *Authority
	names     []string

	mu      sync.Mutex
	current *tls.Certificate
	by      *issuer // of current
}

func (s *serverCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.authority.now()
	by := s.authority.signing().server
	if s.current != nil && s.by.same(by) && now.Before(renewal(s.current.Leaf)) {
		return s.current, nil
	}
	fresh, err := s.authority.ServerCertificate(s.names...)
	switch {
	case err == nil:
		s.current, s.by = fresh, by
	case s.current == nil || now.After(s.current.Leaf.NotAfter):
		s.authority.log.Error("no TLS connection is possible", "error", err)
		return nil, err
	default:
		s.authority.log.Error("the control plane's certificate was not renewed", "error", err, "notAfter", s.current.Leaf.NotAfter)
	}
	return s.current, nil
}

// renewal is when half of a certificate's life is over.
func renewal(leaf *x509.Certificate) time.Time {
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
}
