package sds

import (
	"crypto/x509"
	"slices"
	"time"
)

// mostReplaced bounds the roots that are kept for peers, should an authority make a new one with every certificate.
const mostReplaced = 8

// replacedRoot is one that the authority does not name any more, and that peers' certificates may still lead to.
type replacedRoot struct {
	cert  *x509.Certificate
	until time.Time
}

// replaced are the roots that stay in force beside those of the newest certificate.
type replaced []replacedRoot

// add keeps those of the old roots that the new ones lack, until the time given.
func (r replaced) add(old, now []*x509.Certificate, until time.Time) replaced {
	for _, cert := range old {
		if !contains(now, cert) {
			r = append(r.without(cert), replacedRoot{cert, until})
		}
	}
	for _, cert := range now {
		r = r.without(cert)
	}
	return r[max(0, len(r)-mostReplaced):]
}

func (r replaced) without(cert *x509.Certificate) replaced {
	return slices.DeleteFunc(slices.Clone(r), func(old replacedRoot) bool { return old.cert.Equal(cert) })
}

// after gives those that are still in force at the time.
func (r replaced) after(now time.Time) replaced {
	return slices.DeleteFunc(slices.Clone(r), func(old replacedRoot) bool { return !now.Before(old.until) || now.After(old.cert.NotAfter) })
}

func (r replaced) certs() []*x509.Certificate {
	var certs []*x509.Certificate
	for _, old := range r {
		certs = append(certs, old.cert)
	}
	return certs
}

func contains(certs []*x509.Certificate, cert *x509.Certificate) bool {
	return slices.ContainsFunc(certs, cert.Equal)
}

// joinRoots puts the authority's roots, those that it has replaced, and those of the trust file together. The caller holds
// the lock.
func (c *CASource) joinRoots() []byte {
	return c.trust.join(slices.Concat(c.signed.roots, c.replaced.certs()))
}

// dropReplaced takes roots out of force whose time is over.
func (c *CASource) dropReplaced() {
	c.mu.Lock()
	left := c.replaced.after(c.config.Clock.Now())
	changed := len(left) != len(c.replaced)
	c.replaced = left
	if changed {
		c.material.Roots = c.joinRoots()
	}
	c.mu.Unlock()
	if changed {
		c.config.Logger.Info("a root that the authority has replaced is not trusted any more", "identity", c.id)
		c.notify()
	}
}
