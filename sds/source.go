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

	"github.com/pilotfish-mesh/pilotfish/internal/wake"
)

// Source gives the workload's identity: the certificate "default" and the roots "ROOTCA". Its methods are safe for
// concurrent use.
type Source interface {
	// Run keeps the identity fresh until the context ends; then it returns nil. Server.Run runs it.
	Run(ctx context.Context) error
	// Current is what is in force. Its parts are empty before the first is there, and never again after that.
	Current() Material
	// Subscribe registers a function to be called after each change. It must not block, and comes before Run.
	Subscribe(notify func())
	// NextRotation is when the certificate will be replaced; zero when the source does not know.
	NextRotation() time.Time
	// Name is what the source is called in reports.
	Name() string
	// Health says whether the identity can be used, and why not, or what is wrong although it can.
	Health() (ok bool, reason string)
}

// Material is an identity and the roots that go with it. It is immutable.
type Material struct {
	// Chain is the certificate and its intermediates, in PEM, the certificate first.
	Chain []byte
	// Key is the certificate's private key, in PEM.
	Key PrivateKey
	// Roots are the certificates that peers' have to lead to, in PEM.
	Roots []byte
	// Revoked are lists of certificates under Roots that are not to be trusted any more, in PEM; nil where none were asked for.
	Revoked []byte
	// Domains are the roots by trust domain, in PEM, where a certificate has to lead to one of its own domain's; nil where
	// any of Roots will do.
	Domains map[string][]byte
	// Leaf is the first certificate of Chain.
	Leaf *x509.Certificate
}

func (m Material) equal(o Material) bool {
	return bytes.Equal(m.Chain, o.Chain) && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Roots, o.Roots) &&
		bytes.Equal(m.Revoked, o.Revoked) &&
		maps.EqualFunc(m.Domains, o.Domains, bytes.Equal)
}

// PrivateKey is a key in PEM, which shows itself to nobody who prints or logs it.
type PrivateKey []byte

const redacted = "[redacted]"

// String hides the key.
func (PrivateKey) String() string { return redacted }

// GoString hides the key.
func (PrivateKey) GoString() string { return redacted }

// Format hides the key, whatever the verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue hides the key.
func (PrivateKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the key.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// CertificateInfo describes a certificate that is served, without its secrets.
type CertificateInfo struct {
	// Name is the resource's: default, ROOTCA, file-cert:…
	Name     string `json:"name"`
	SPIFFEID string `json:"spiffeId,omitempty"`
	// Subject tells certificates apart that have no SPIFFE ID: roots, for instance.
	Subject string `json:"subject,omitempty"`
	// Issuer is who signed it.
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// NextRotation is when a successor will be asked for; zero when that is not for us to do.
	NextRotation time.Time `json:"nextRotation,omitzero"`
	// Chain are the certificates behind it, up to the root, which is not among them.
	Chain []ChainLink `json:"chain,omitempty"`
	// Source is where it came from: the CA's address, or files.
	Source string `json:"source"`
}

// ChainLink is a certificate between a workload's and a root.
type ChainLink struct {
	Subject  string    `json:"subject"`
	Issuer   string    `json:"issuer"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
}

// describeChain describes a certificate and what is behind it.
func describeChain(name, source string, m Material) CertificateInfo {
	info := describeCertificate(name, source, m.Leaf)
	certs, err := parseCertificates(m.Chain)
	if err != nil { // which nobody serves
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

// Clock is time, for tests to hold.
type Clock interface {
	Now() time.Time
	// After gives a channel that delivers once the duration has passed.
	After(d time.Duration) <-chan time.Time
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// After is time.After.
func (SystemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Sleep waits until so much time has passed, also while the machine was suspended, or the clock is set, or the context ends.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) { wake.Sleep(ctx, d) }

// subscribers are the functions to call after a change.
type subscribers struct {
	mu    sync.Mutex
	calls []func()
}

func (s *subscribers) add(notify func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, notify)
}

func (s *subscribers) notify() {
	s.mu.Lock()
	calls := s.calls
	s.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// publicKey is what every standard public key can do.
type publicKey interface{ Equal(crypto.PublicKey) bool }
