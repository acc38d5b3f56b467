package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/pemtext"
)

// Names of the files of an external CA. They are the same as in Istio.
const (
	plugInCert  = "ca-cert.pem"
	plugInKey   = "ca-key.pem"
	plugInRoots = "root-cert.pem"
	plugInChain = "cert-chain.pem"
)

// PlugIn is an externally created CA. The files have Istio's names: ca-cert.pem, ca-key.pem, root-cert.pem and, if the
// CA's certificate is not a root itself, cert-chain.pem.
type PlugIn interface {
	// Location names the place of the files in messages.
	Location() string
	// Remedy describes how to replace a CA that can no longer sign. It completes a sentence.
	Remedy() string
	// Files returns the contents of the files by name. Optional files may be missing.
	Files(ctx context.Context) (map[string][]byte, error)
}

// PlugInDir is a directory with an externally created CA.
type PlugInDir string

// replacePlugIn is the remedy if an external CA in a directory can no longer sign.
const replacePlugIn = "add the root of a new CA to root-cert.pem in that directory, then replace the CA's certificate and key there"

// Location implements PlugIn.
func (d PlugInDir) Location() string { return string(d) }

// Remedy implements PlugIn.
func (PlugInDir) Remedy() string { return replacePlugIn }

// Files implements PlugIn. It fails if other users can read the key.
func (d PlugInDir) Files(context.Context) (map[string][]byte, error) {
	data := map[string][]byte{}
	for _, name := range []string{plugInCert, plugInKey, plugInRoots, plugInChain} {
		path := filepath.Join(string(d), name)
		if _, err := os.Stat(path); name == plugInChain && errors.Is(err, fs.ErrNotExist) {
			continue // the CA's certificate is a root itself
		}
		content, err := readFile(path, name == plugInKey, replacePlugIn)
		if err != nil {
			return nil, err
		}
		data[name] = content
	}
	return data, nil
}

// readPlugIn reads an external CA. It fails if the CA's certificate does not chain to one of the roots, or is not valid
// at the time now.
func readPlugIn(ctx context.Context, from PlugIn, now time.Time) (*signing, error) {
	data, err := from.Files(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{plugInCert, plugInKey, plugInRoots} {
		if len(data[name]) == 0 {
			return nil, fmt.Errorf("%s is missing or empty: add it", name)
		}
	}
	certs, err := parseCertificates(data[plugInCert])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", plugInCert, err)
	}
	roots, err := parseCertificates(data[plugInRoots])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", plugInRoots, err)
	}
	between := certs
	if len(data[plugInChain]) > 0 {
		if between, err = parseCertificates(data[plugInChain]); err != nil {
			return nil, fmt.Errorf("reading %s: %w", plugInChain, err)
		}
	}
	key, err := parseAnyKey(data[plugInKey])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", plugInKey, err)
	}
	return newPlugInIssuer(certs[0], key, between, roots, now)
}

func newPlugInIssuer(cert *x509.Certificate, key crypto.Signer, between, roots []*x509.Certificate, now time.Time) (*signing, error) {
	if !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("%s is not a CA certificate", plugInCert)
	}
	if !isKeyOf(cert, key) {
		return nil, fmt.Errorf("%s is not the key of %s", plugInKey, plugInCert)
	}
	by := &issuer{cert: cert, key: key, notAfter: cert.NotAfter}
	pool, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	for _, c := range append([]*x509.Certificate{cert}, between...) {
		intermediates.AddCert(c)
	}
	chains, err := cert.Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil, fmt.Errorf("%s does not chain to a root in %s: %w", plugInCert, plugInRoots, err)
	}
	for _, c := range chains[0] {
		if c.NotAfter.Before(by.notAfter) {
			by.notAfter = c.NotAfter
		}
		if root := chains[0][len(chains[0])-1]; !c.Equal(root) {
			by.intermediates = append(by.intermediates, c)
		}
	}
	return newSigning(by, by, roots), nil
}

// isKeyOf reports whether key is the private key of cert.
func isKeyOf(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	blocks, err := pemtext.Blocks(data)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for _, block := range blocks {
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("the file contains a PEM block %.40q; only certificates are accepted", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("the file contains no PEM certificate")
	}
	return out, nil
}

// parseAnyKey parses an RSA or ECDSA key in PEM. It accepts each format that OpenSSL writes (SEC 1, PKCS #1, PKCS #8),
// and ignores other PEM blocks before the key.
func parseAnyKey(data []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("the file contains no usable private key: provide an RSA or ECDSA key in PEM without a passphrase")
		}
		switch block.Type {
		case "EC PRIVATE KEY":
			return x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			return x509.ParsePKCS1PrivateKey(block.Bytes)
		case pemPrivateKey:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			switch key := key.(type) {
			case *ecdsa.PrivateKey:
				return key, nil
			case *rsa.PrivateKey:
				return key, nil
			}
			return nil, fmt.Errorf("a key of type %T is not accepted; use RSA or ECDSA", key)
		}
	}
}
