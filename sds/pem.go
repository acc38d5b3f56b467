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

// parseKeyPair checks that a certificate and a key (PEM) match, and returns the certificate.
func parseKeyPair(chain, key []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	return pair.Leaf, nil
}

// parseCertificates returns all certificates of a PEM text. It fails if there is none or if one is truncated.
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
		return nil, errors.New("it contains no PEM certificate")
	}
	return certs, nil
}

// encodeCertificates encodes certificates as PEM in the same order, without duplicates.
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

// removePrivateKeys removes private keys from a PEM text. Some users store them in the certificate's file, and Envoy's
// admin interface shows certificates without authentication.
func removePrivateKeys(text []byte) []byte {
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
