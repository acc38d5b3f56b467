package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
)

// trustFile is the content of a file of further roots.
type trustFile struct {
	certs []*x509.Certificate
	// problem is why the file could not be read last; certs are then the last good ones.
	problem error
}

// join gives the roots of the authority and those of the file, as PEM.
func (t trustFile) join(roots []*x509.Certificate) []byte {
	all := append(append([]*x509.Certificate{}, roots...), t.certs...)
	return encodeCertificates(all)
}

// trusted gives the roots of the trust file, which is read anew.
func (c *CASource) trusted() []*x509.Certificate {
	if _, changed := c.readTrust(); changed {
		c.notify()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*x509.Certificate{}, c.trust.certs...)
}

// watchTrust puts changes of the trust file in force.
func (c *CASource) watchTrust(ctx context.Context) {
	w := &watch{
		debounce: c.config.Debounce, clock: c.config.Clock, log: c.config.Logger, failed: func() {},
		paths: func() []string { return []string{c.config.TrustFile} },
		wake:  c.trustWake, disks: &c.disks,
		check: func() bool {
			well, changed := c.readTrust()
			if changed {
				c.config.Logger.Info("the trusted roots have changed", "file", c.config.TrustFile)
				c.notify()
			}
			return well
		},
	}
	w.run(ctx)
}

// readTrust reads the trust file; one that is missing or broken leaves the last good roots in place.
func (c *CASource) readTrust() (well, changed bool) {
	if c.config.TrustFile == "" {
		return true, false
	}
	var certs []*x509.Certificate
	var failed error
	err := c.disks.Around(c.config.TrustFile, func() { certs, failed = readTrustFile(c.config.TrustFile) })
	if err == nil {
		err = failed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.trust.problem == nil || c.trust.problem.Error() != err.Error() { // once a cause, not once an attempt
			c.config.Logger.Warn("the trust file cannot be used", "error", err, "lastGoodRootsServed", len(c.trust.certs))
		}
		c.trust.problem = err
		return false, false
	}
	c.trust = trustFile{certs: certs}
	if c.signed.leaf == nil {
		return true, false
	}
	roots := c.joinRoots()
	if bytes.Equal(roots, c.material.Roots) {
		return true, false
	}
	c.material.Roots = roots
	return true, true
}

func readTrustFile(file string) ([]*x509.Certificate, error) {
	text, err := readBounded(file)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return certs, nil
}
