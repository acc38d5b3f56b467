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

// signWorkload makes a certificate whose only name is the SPIFFE ID. Nothing but the key is taken from the request.
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

// workloadTTL is the life that a request gets: what it asks for, within bounds.
func (a *Authority) workloadTTL(asked time.Duration) time.Duration {
	if asked <= 0 {
		return a.opts.TTL
	}
	return min(asked, a.opts.MaxTTL)
}

// sign completes a certificate and signs it by what signs at present.
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	return a.signWith(a.signing().issuer, template, key, ttl)
}

// signWith signs a certificate that ends no later than its issuer does.
func (a *Authority) signWith(by *issuer, template *x509.Certificate, key crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if !now.Before(by.end) {
		remedy := startAnew
		if a.opts.PlugIn != "" {
			remedy = replacePlugIn
		}
		return nil, fmt.Errorf("the authority's certificate in %s expired at %s: %s", a.place(), by.end.Format(time.RFC3339), remedy)
	}
	a.warnOfEnd()
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-backdate), now.Add(ttl)
	if template.NotBefore.Before(by.cert.NotBefore) {
		template.NotBefore = by.cert.NotBefore
	}
	if template.NotAfter.After(by.end) {
		template.NotAfter = by.end
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
