// Package testpki creates certificates for tests.
package testpki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"
)

// lifetime is the lifetime of CA certificates.
const lifetime = 7 * 24 * time.Hour

// Authority is a certificate authority.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// New creates an authority with a self-signed root certificate.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return &Authority{Cert: sign(t, template, template, key.Public(), key), Key: key}
}

// Intermediate creates an authority whose certificate is signed by a.
func (a *Authority) Intermediate(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return &Authority{Cert: a.Sign(t, template, key.Public()), Key: key}
}

// PEM returns the authority's certificate in PEM.
func (a *Authority) PEM() []byte { return PEM(a.Cert) }

// Sign signs a certificate for key with the contents of template. If the template has no serial number or validity,
// defaults are used.
func (a *Authority) Sign(t testing.TB, template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	if template.SerialNumber == nil {
		template.SerialNumber = serial(t)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Minute)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	return sign(t, template, a.Cert, key, a.Key)
}

// Workload creates a certificate and key for a SPIFFE ID, for clients and servers, in PEM.
func (a *Authority) Workload(t testing.TB, id string) (cert, key []byte) {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	return a.issue(t, &x509.Certificate{URIs: []*url.URL{uri}})
}

// Server creates a certificate and key for a server with the specified host names and IP addresses, in PEM.
func (a *Authority) Server(t testing.TB, names ...string) (cert, key []byte) {
	t.Helper()
	template := &x509.Certificate{}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.issue(t, template)
}

// ServerConfig returns a TLS configuration for a server with the specified host names and IP addresses.
func (a *Authority) ServerConfig(t testing.TB, names ...string) *tls.Config {
	t.Helper()
	cert, key := a.Server(t, names...)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
}

// Pool returns a pool that contains the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

func (a *Authority) issue(t testing.TB, template *x509.Certificate) (cert, key []byte) {
	t.Helper()
	signer := newKey(t)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	return PEM(a.Sign(t, template, signer.Public())), KeyPEM(t, signer)
}

// PEM encodes certificates as PEM.
func PEM(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// KeyPEM encodes a private key as PEM.
func KeyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sign(t testing.TB, template, parent *x509.Certificate, key crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
