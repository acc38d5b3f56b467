package ca

import (
	"crypto"
	"crypto/x509"
	"time"
)

// issuer is a certificate and key that sign.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
	// between are the certificates from this one to the root, without the root: this one first, unless it is the root.
	between []*x509.Certificate
	root    *x509.Certificate // nil when the root is not a part of what is sent
	end     time.Time         // of the first of the chain that ends
}

// chain is what is sent behind a certificate that it signed.
func (i *issuer) chain() []*x509.Certificate {
	if i.root == nil {
		return i.between
	}
	return append(i.between[:len(i.between):len(i.between)], i.root)
}

func (i *issuer) same(o *issuer) bool { return i != nil && o != nil && i.cert.Equal(o.cert) }

// newIssuer is a root that signs by itself.
func newIssuer(root *x509.Certificate, key crypto.Signer) *issuer {
	return &issuer{cert: root, key: key, root: root, end: root.NotAfter}
}

// signing is what signs, and whom members have to trust. Immutable.
type signing struct {
	issuer *issuer
	// server signs the control plane's own certificate: while roots are rotated the older one, which is all that an agent
	// may know whose file of roots nobody has replaced yet.
	server   *issuer
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

func (s *signing) end() time.Time { return s.issuer.end }
