package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// serverTTL is the lifetime of the control plane's own certificate. The certificate is renewed after half of that time.
const serverTTL = 24 * time.Hour

// serverNames returns the host names and addresses by which agents usually connect to a control plane: Istio's names,
// and loopback.
func serverNames() []string {
	return []string{
		"istiod.istio-system.svc", "istiod.istio-system.svc.cluster.local", "pilotfish", "localhost", "127.0.0.1", "::1",
	}
}

// ServerTLS returns the TLS configuration of the control plane's ports. The server certificate contains the usual names
// of a control plane and those in names (DNS names and IP addresses). It is renewed automatically. Clients may have a
// certificate, which is verified. Connections on which a proxy forwards requests of workloads are refused. HTTP/2 is
// enabled. Options.TLSPolicy restricts the configuration.
func (a *Authority) ServerTLS(names ...string) *tls.Config {
	own := &serverCertificate{authority: a, names: cleanNames(append(serverNames(), names...))}
	// Create the first certificate now, so that the first client does not wait for it, and errors are logged at the
	// start.
	_, _ = own.get(nil)
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2"},
		ClientAuth:     tls.VerifyClientCertIfGiven,
		GetCertificate: own.get,
		Time:           a.now,
	}
	a.opts.TLSPolicy.Narrow(config)
	// The trusted roots change in a rotation, so each connection uses a copy of the configuration with the current
	// roots.
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if isWorkloadTLS(hello) {
			return nil, errWorkloadTLS
		}
		now := config.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, a.signing().pool
		return now, nil
	}
	return config
}

var errWorkloadTLS = errors.New("the client uses TLS as between workloads: a proxy forwards requests to the control plane, because a DestinationRule with ISTIO_MUTUAL applies to its host: remove the host from the rule")

// isWorkloadTLS reports whether the client offers the ALPN protocols of mutual TLS between workloads. On such a
// connection, a proxy forwards requests of its clients, which the control plane must not treat as requests of the
// proxy. Agents offer h2 instead.
func isWorkloadTLS(hello *tls.ClientHelloInfo) bool {
	return slices.ContainsFunc(hello.SupportedProtos, func(name string) bool { return strings.HasPrefix(name, "istio") })
}

// cleanNames removes spaces and the brackets of IPv6 addresses from names, sorts them, and removes empty and duplicate
// ones. It modifies names.
func cleanNames(names []string) []string {
	for i, name := range names {
		names[i] = strings.Trim(strings.TrimSpace(name), "[]")
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// ServerCertificate issues a certificate for a server of the control plane, with exactly the DNS names and IP addresses
// in names.
func (a *Authority) ServerCertificate(names ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the control plane's private key: %w", err)
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
		return nil, fmt.Errorf("signing the control plane's certificate: %w", err)
	}
	chain := [][]byte{leaf.Raw}
	for _, cert := range by.chain() {
		chain = append(chain, cert.Raw)
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

// serverCertificate caches and renews the control plane's certificate.
type serverCertificate struct {
	authority *Authority
	names     []string

	mu      sync.Mutex
	current *tls.Certificate
	issuer  *issuer // issuer of current
}

func (s *serverCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.authority.now()
	by := s.authority.signing().server
	if s.current != nil && s.issuer.isSame(by) && now.Before(renewalTime(s.current.Leaf)) {
		return s.current, nil
	}
	fresh, err := s.authority.ServerCertificate(s.names...)
	switch {
	case err == nil:
		s.current, s.issuer = fresh, by
	case s.current == nil || now.After(s.current.Leaf.NotAfter):
		s.authority.log.Error("TLS handshakes fail, because the control plane has no certificate", "error", err)
		return nil, err
	default:
		s.authority.log.Error("renewing the control plane's certificate failed; the previous certificate stays in use", "error", err, "notAfter", s.current.Leaf.NotAfter)
	}
	return s.current, nil
}

// renewalTime returns the middle of the lifetime of leaf.
func renewalTime(leaf *x509.Certificate) time.Time {
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
}
