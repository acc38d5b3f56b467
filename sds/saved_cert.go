package sds

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Names of the files in which Istio's agent stores an identity.
const (
	chainFile = "cert-chain.pem"
	keyFile   = "key.pem"
	rootsFile = "root-cert.pem"
)

// IdentityFiles returns a FileConfig for the certificate, key and roots in dir, with the file names of Istio's agent.
func IdentityFiles(dir string) FileConfig {
	return FileConfig{CertFile: filepath.Join(dir, chainFile), KeyFile: filepath.Join(dir, keyFile), RootFile: filepath.Join(dir, rootsFile)}
}

// restoreSaved serves the saved certificate if it is valid, so that an agent has an identity while its CA is
// unreachable. Run requests a new certificate immediately.
func (c *CASource) restoreSaved() {
	if c.config.Saved == "" {
		return
	}
	answer, key, err := c.readSaved()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		c.config.Logger.Info("the certificate of an earlier run is not used", "directory", c.config.Saved, "reason", err)
		return
	}
	c.issued = answer
	c.material = Material{Chain: answer.chain, Key: key, Leaf: answer.leaf, Roots: c.mergeRoots()}
	c.nextRotation = c.config.Clock.Now()
	c.config.Logger.Info("the certificate of an earlier run is served until a new one is issued", "directory", c.config.Saved,
		"notAfter", answer.leaf.NotAfter)
}

func (c *CASource) readSaved() (issuedCert, PrivateKey, error) {
	files := IdentityFiles(c.config.Saved)
	var m Material
	var text []byte
	var failed error
	err := c.timeoutFS.Do(c.config.Saved, func() {
		if m, failed = readKeyPair(files.CertFile, files.KeyFile); failed == nil {
			text, failed = readBounded(files.RootFile)
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return issuedCert{}, nil, err
	}
	roots, err := parseCertificates(text)
	if err != nil {
		return issuedCert{}, nil, fmt.Errorf("%s: %w", files.RootFile, err)
	}
	chain, err := parseCertificates(m.Chain)
	if err != nil {
		return issuedCert{}, nil, err
	}
	answer, err := c.checkWorkloadChain(chain, roots)
	answer.start = m.Leaf.NotBefore
	return answer, m.Key, err
}
