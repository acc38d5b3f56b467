package sds

import (
	"crypto/x509"
	"slices"
	"time"
)

// maxReplaced limits the number of replaced roots, because a faulty CA may create a new root with every certificate.
const maxReplaced = 8

// replacedRoot is a root that the CA no longer returns, but under which peers may still have certificates.
type replacedRoot struct {
	cert  *x509.Certificate
	until time.Time
}

// replacedRoots are trusted in addition to the roots of the newest certificate.
type replacedRoots []replacedRoot

// add adds the roots in old that are not in current, the roots that the CA now returns. The added roots are trusted
// until expiry. add removes the roots in current, and the oldest entries above maxReplaced.
func (r replacedRoots) add(old, current []*x509.Certificate, expiry time.Time) replacedRoots {
	for _, cert := range old {
		if !containsCert(current, cert) {
			r = append(r.removeCert(cert), replacedRoot{cert, expiry})
		}
	}
	for _, cert := range current {
		r = r.removeCert(cert)
	}
	return r[max(0, len(r)-maxReplaced):]
}

func (r replacedRoots) removeCert(cert *x509.Certificate) replacedRoots {
	return slices.DeleteFunc(slices.Clone(r), func(old replacedRoot) bool { return old.cert.Equal(cert) })
}

// stillValid returns the roots that are still trusted at now.
func (r replacedRoots) stillValid(now time.Time) replacedRoots {
	return slices.DeleteFunc(slices.Clone(r), func(old replacedRoot) bool { return !now.Before(old.until) || now.After(old.cert.NotAfter) })
}

func (r replacedRoots) certs() []*x509.Certificate {
	var certs []*x509.Certificate
	for _, old := range r {
		certs = append(certs, old.cert)
	}
	return certs
}

func containsCert(certs []*x509.Certificate, cert *x509.Certificate) bool {
	return slices.ContainsFunc(certs, cert.Equal)
}

// mergeRoots returns the CA's roots, the replaced roots, and the roots of the trust file, as PEM. The caller holds
// c.mu.
func (c *CASource) mergeRoots() []byte {
	return c.trust.mergeWith(slices.Concat(c.issued.roots, c.replacedRoots.certs()))
}

// expireReplacedRoots removes the replaced roots whose time has elapsed, and notifies the subscribers.
func (c *CASource) expireReplacedRoots() {
	c.mu.Lock()
	left := c.replacedRoots.stillValid(c.config.Clock.Now())
	changed := len(left) != len(c.replacedRoots)
	c.replacedRoots = left
	if changed {
		c.material.Roots = c.mergeRoots()
	}
	c.mu.Unlock()
	if changed {
		c.config.Logger.Info("a root that the certificate authority replaced is no longer trusted", "identity", c.id)
		c.notify()
	}
}
