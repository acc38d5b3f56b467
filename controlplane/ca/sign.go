package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"time"
)

func encodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: cert.Raw})
}

// signWorkload issues a certificate whose only name is the SPIFFE ID of id. key is the public key in the CSR. The
// certificate contains nothing else from the CSR.
func (a *Authority) signWorkload(id Identity, key crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	uri, err := url.Parse(id.SPIFFEID())
	if err != nil {
		return nil, err
	}
	return a.sign(&x509.Certificate{
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key, a.workloadTTL(ttl))
}

// workloadTTL returns the lifetime of a workload's certificate: requested, but at most Options.MaxTTL. If requested is
// not positive, it returns Options.TTL.
func (a *Authority) workloadTTL(requested time.Duration) time.Duration {
	if requested <= 0 {
		return a.opts.TTL
	}
	return min(requested, a.opts.MaxTTL)
}

// sign is like signWith, with the current issuer.
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	return a.signWith(a.signing().issuer, template, key, ttl)
}

// signWith completes template and issues a certificate for key, signed by the issuer by. The certificate expires no
// later than the issuer's certificate.
func (a *Authority) signWith(by *issuer, template *x509.Certificate, key crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if !now.Before(by.notAfter) {
		remedy := a.store.Remedy()
		if a.opts.PlugIn != nil {
			remedy = a.opts.PlugIn.Remedy()
		}
		return nil, fmt.Errorf("the authority's certificate in %s expired at %s: %s", a.location(), by.notAfter.Format(time.RFC3339), remedy)
	}
	a.warnOfExpiry()
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-backdate), now.Add(ttl)
	if template.NotBefore.Before(by.cert.NotBefore) {
		template.NotBefore = by.cert.NotBefore
	}
	if template.NotAfter.After(by.notAfter) {
		template.NotAfter = by.notAfter
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if _, ok := key.(*rsa.PublicKey); ok {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key, by.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}
