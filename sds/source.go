package sds

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// Source provides the workload's identity: the certificate "default" and the roots "ROOTCA". Its methods are safe for
// concurrent use.
type Source interface {
	// Run renews the identity until ctx ends; then it returns nil. Server.Run calls it.
	Run(ctx context.Context) error
	// Current returns the identity that is served now. It is empty until the first identity is available.
	Current() Material
	// Subscribe registers a function that is called after each change. The function must not block. Call Subscribe
	// before Run.
	Subscribe(notify func())
	// NextRotation returns when the certificate will be replaced, or the zero time if the source does not know it.
	NextRotation() time.Time
	// Name returns the source's name for reports.
	Name() string
	// Health reports whether the identity is usable. reason describes a problem, which can exist even if ok is true.
	Health() (ok bool, reason string)
}

// Material is an identity with its roots. It is immutable.
type Material struct {
	// Chain contains the certificate and then its intermediates, in PEM.
	Chain []byte
	// Key is the certificate's private key in PEM.
	Key PrivateKey
	// Roots are the trusted roots for peers' certificates, in PEM.
	Roots []byte
	// Revoked contains the CRLs of Roots in PEM; nil if none are configured.
	Revoked []byte
	// Domains maps a trust domain to its roots (PEM). If set, a certificate must chain to a root of its own trust
	// domain. nil: a certificate may chain to any of Roots.
	Domains map[string][]byte
	// Leaf is the first certificate of Chain.
	Leaf *x509.Certificate
}

func (m Material) equal(o Material) bool {
	return bytes.Equal(m.Chain, o.Chain) && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Roots, o.Roots) &&
		bytes.Equal(m.Revoked, o.Revoked) &&
		maps.EqualFunc(m.Domains, o.Domains, bytes.Equal)
}

// PrivateKey is a key in PEM. It is redacted when it is printed or logged.
type PrivateKey []byte

const redacted = "[redacted]"

// String hides the key.
func (PrivateKey) String() string { return redacted }

// GoString hides the key.
func (PrivateKey) GoString() string { return redacted }

// Format hides the key for every formatting verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue hides the key.
func (PrivateKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the key.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// CertificateInfo describes a served certificate, without its key.
type CertificateInfo struct {
	// Name is the resource name: default, ROOTCA, file-cert:…
	Name     string `json:"name"`
	SPIFFEID string `json:"spiffeId,omitempty"`
	// Subject identifies certificates without a SPIFFE ID, such as roots.
	Subject string `json:"subject,omitempty"`
	// Issuer is the subject of the CA that signed it.
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// NextRotation is when the next certificate is requested; zero if another process renews it.
	NextRotation time.Time `json:"nextRotation,omitzero"`
	// Chain contains the intermediates, without the root.
	Chain []ChainLink `json:"chain,omitempty"`
	// Source is the Name of the Source, or the path of the certificate's file.
	Source string `json:"source"`
}

// ChainLink is an intermediate certificate.
type ChainLink struct {
	Subject  string    `json:"subject"`
	Issuer   string    `json:"issuer"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
}

// describeChain describes a certificate with its intermediates.
func describeChain(name, source string, m Material) CertificateInfo {
	info := describeCertificate(name, source, m.Leaf)
	certs, err := parseCertificates(m.Chain)
	if err != nil { // cannot happen for a served chain
		return info
	}
	for _, c := range certs[1:] {
		info.Chain = append(info.Chain, ChainLink{
			Subject: c.Subject.String(), Issuer: c.Issuer.String(), Serial: hex.EncodeToString(c.SerialNumber.Bytes()), NotAfter: c.NotAfter,
		})
	}
	return info
}

func describeCertificate(name, source string, c *x509.Certificate) CertificateInfo {
	info := CertificateInfo{
		Name: name, Source: source, Subject: c.Subject.String(), Issuer: c.Issuer.String(), Serial: hex.EncodeToString(c.SerialNumber.Bytes()),
		NotBefore: c.NotBefore, NotAfter: c.NotAfter,
	}
	for _, uri := range c.URIs {
		if uri.Scheme == "spiffe" {
			info.SPIFFEID = uri.String()
		}
	}
	return info
}

// Clock returns the time and creates timers. Tests replace it.
type Clock interface {
	Now() time.Time
	// NewTimer returns a channel that receives after d.
	NewTimer(d time.Duration) <-chan time.Time
}

// systemClock is the system clock.
type systemClock struct{}

// Now returns time.Now().
func (systemClock) Now() time.Time { return time.Now() }

// NewTimer returns time.After(d).
func (systemClock) NewTimer(d time.Duration) <-chan time.Time { return time.After(d) }

// subscribers is a list of functions that are called after each change.
type subscribers struct {
	mu        sync.Mutex
	callbacks []func()
}

func (s *subscribers) add(notify func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callbacks = append(s.callbacks, notify)
}

func (s *subscribers) notify() {
	s.mu.Lock()
	calls := s.callbacks
	s.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// publicKey is implemented by all public keys of the standard library.
type publicKey interface{ Equal(crypto.PublicKey) bool }
