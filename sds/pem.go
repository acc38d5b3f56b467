package sds

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/pemtext"
)

// parsePair checks that a certificate and a key in PEM belong together, and gives the certificate.
func parsePair(chain, key []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	return pair.Leaf, nil
}

// parseCertificates reads all certificates of a PEM text; none is an error, and so is one that is not whole.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	blocks, err := pemtext.Blocks(text)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate in it")
	}
	return certs, nil
}

// encodeCertificates writes certificates as PEM, each once, in the order given.
func encodeCertificates(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	seen := make(map[string]bool)
	for _, c := range certs {
		if !seen[string(c.Raw)] {
			seen[string(c.Raw)] = true
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		}
	}
	return out.Bytes()
}

// withoutKeys leaves private keys out of a PEM text, which some keep in one file with the certificates: Envoy shows
// certificates to whoever asks its admin interface.
func withoutKeys(text []byte) []byte {
	const keyType = "PRIVATE KEY"
	if !bytes.Contains(text, []byte(keyType)) {
		return text
	}
	var kept []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if !strings.HasSuffix(block.Type, keyType) {
			kept = append(kept, pem.EncodeToMemory(block)...)
		}
	}
	return kept
}
