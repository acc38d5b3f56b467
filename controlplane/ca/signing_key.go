package ca

import (
	"crypto"
	"crypto/x509"
	"time"
)

// issuer is a certificate that signs other certificates, and its key.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
	// intermediates are the certificates between an issued certificate and the root, without the root.
	intermediates []*x509.Certificate
	root          *x509.Certificate // nil if responses do not contain the root
	notAfter      time.Time         // earliest expiry in the chain
}

// chain returns the certificates that follow the issued certificate in a response: the intermediates and the root.
func (i *issuer) chain() []*x509.Certificate {
	if i.root == nil {
		return i.intermediates
	}
	return append(i.intermediates[:len(i.intermediates):len(i.intermediates)], i.root)
}

func (i *issuer) isSame(o *issuer) bool { return i != nil && o != nil && i.cert.Equal(o.cert) }

// newIssuer returns an issuer that signs with root itself, without intermediate certificates.
func newIssuer(root *x509.Certificate, key crypto.Signer) *issuer {
	return &issuer{cert: root, key: key, root: root, notAfter: root.NotAfter}
}

// signing contains the current issuers and trusted roots. It is immutable.
type signing struct {
	issuer *issuer
	// server is the issuer of the control plane's own certificate. During a rotation it is the previous root, because
	// agents with an old root file trust only that root.
	server *issuer
	// next is the announced root, or nil. Before it is activated, it signs only revocation lists.
	next     *issuer
	roots    []*x509.Certificate
	rootsPEM []byte
	pool     *x509.CertPool
}

func newSigning(by, server *issuer, roots []*x509.Certificate) *signing {
	s := &signing{issuer: by, server: server, pool: x509.NewCertPool()}
	for _, root := range roots {
		if s.trusts(root) {
			continue
		}
		s.roots = append(s.roots, root)
		s.pool.AddCert(root)
		s.rootsPEM = append(s.rootsPEM, encodeCertificate(root)...)
	}
	return s
}

func (s *signing) trusts(root *x509.Certificate) bool {
	for _, known := range s.roots {
		if known.Equal(root) {
			return true
		}
	}
	return false
}

func (s *signing) notAfter() time.Time { return s.issuer.notAfter }
