package sds

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// The files of an identity, as Istio's agent names them.
const (
	chainFile = "cert-chain.pem"
	keyFile   = "key.pem"
	rootsFile = "root-cert.pem"
)

// Files gives the FileConfig of an identity in a directory of Istio's making.
func Files(dir string) FileConfig {
	return FileConfig{CertFile: filepath.Join(dir, chainFile), KeyFile: filepath.Join(dir, keyFile), RootFile: filepath.Join(dir, rootsFile)}
}

// restore puts the saved certificate in force, if it is a good one, so that an agent that starts while its authority is
// away has an identity. The authority is asked for another as soon as it answers.
func (c *CASource) restore() {
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
	c.signed = answer
	c.material = Material{Chain: answer.chain, Key: key, Leaf: answer.leaf, Roots: c.joinRoots()}
	c.rotation = c.config.Clock.Now()
	c.config.Logger.Info("the certificate of an earlier run is served until there is another", "directory", c.config.Saved,
		"notAfter", answer.leaf.NotAfter)
}

func (c *CASource) readSaved() (signed, PrivateKey, error) {
	files := Files(c.config.Saved)
	var m Material
	var text []byte
	var failed error
	err := c.disks.Ask(c.config.Saved, func() {
		if m, failed = readPair(files.CertFile, files.KeyFile); failed == nil {
			text, failed = readBounded(files.RootFile)
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return signed{}, nil, err
	}
	roots, err := parseCertificates(text)
	if err != nil {
		return signed{}, nil, fmt.Errorf("%s: %w", files.RootFile, err)
	}
	own, err := parseCertificates(m.Chain)
	if err != nil {
		return signed{}, nil, err
	}
	answer, err := c.checkOwn(own, roots)
	answer.since = m.Leaf.NotBefore
	return answer, m.Key, err
}
