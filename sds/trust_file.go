package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
)

// trustFile contains the roots of the trust file.
type trustFile struct {
	certs []*x509.Certificate
	// problem is the last read error; certs are then the last valid roots.
	problem error
}

// mergeWith returns roots and the file's roots, as PEM.
func (t trustFile) mergeWith(roots []*x509.Certificate) []byte {
	all := append(append([]*x509.Certificate{}, roots...), t.certs...)
	return encodeCertificates(all)
}

// loadTrustedRoots reads the trust file, notifies the subscribers if its roots changed, and returns its roots.
func (c *CASource) loadTrustedRoots() []*x509.Certificate {
	if _, changed := c.reloadTrustFile(); changed {
		c.notify()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*x509.Certificate{}, c.trust.certs...)
}

// watchTrust applies changes of the trust file until ctx ends.
func (c *CASource) watchTrust(ctx context.Context) {
	w := &fileWatcher{
		debounce: c.config.Debounce, clock: c.config.Clock, log: c.config.Logger, failed: func() {},
		paths: func() []string { return []string{c.config.TrustFile} },
		wake:  c.trustWake, timeoutFS: &c.timeoutFS,
		check: func() bool {
			ok, changed := c.reloadTrustFile()
			if changed {
				c.config.Logger.Info("the trusted roots have changed", "file", c.config.TrustFile)
				c.notify()
			}
			return ok
		},
	}
	w.run(ctx)
}

// reloadTrustFile reads the trust file. If it is missing or malformed, the last valid roots remain in force.
func (c *CASource) reloadTrustFile() (ok, changed bool) {
	if c.config.TrustFile == "" {
		return true, false
	}
	var certs []*x509.Certificate
	var failed error
	err := c.timeoutFS.DoFile(c.config.TrustFile, func() { certs, failed = readTrustFile(c.config.TrustFile) })
	if err == nil {
		err = failed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.trust.problem == nil || c.trust.problem.Error() != err.Error() { // log once per cause, not for each attempt
			c.config.Logger.Warn("cannot use the trust file", "error", err, "lastGoodRootsServed", len(c.trust.certs))
		}
		c.trust.problem = err
		return false, false
	}
	c.trust = trustFile{certs: certs}
	if c.issued.leaf == nil {
		return true, false
	}
	roots := c.mergeRoots()
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
