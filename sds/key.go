package sds

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// KeyType is a type of private key: ECDSAP256, ECDSAP384, or the result of RSA.
type KeyType string

// Key types.
const (
	ECDSAP256 KeyType = "ECDSA-P256"
	ECDSAP384 KeyType = "ECDSA-P384"
	RSA2048   KeyType = "RSA-2048"

	rsaPrefix = "RSA-"
	// Length limits of RSA keys in bits. Shorter keys are insecure; longer keys need seconds to generate and use.
	minRSA, maxRSA = 2048, 8192
)

// RSA returns the type of RSA keys with the specified length, from 2048 to 8192 bits.
func RSA(bits int) KeyType { return KeyType(rsaPrefix + strconv.Itoa(bits)) }

// rsaBits returns the key length of an RSA type in bits. It returns 0 for other types, and if the length is not from
// minRSA to maxRSA.
func (k KeyType) rsaBits() int {
	bits, ok := strings.CutPrefix(string(k), rsaPrefix)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(bits)
	if err != nil || n < minRSA || n > maxRSA {
		return 0
	}
	return n
}

func (k KeyType) check() error {
	if k == ECDSAP256 || k == ECDSAP384 || k.rsaBits() > 0 {
		return nil
	}
	return fmt.Errorf("the key type %q is unknown: use %s, %s or %s%d to %s%d", k, ECDSAP256, ECDSAP384, rsaPrefix, minRSA, rsaPrefix, maxRSA)
}

// keyPair is a private key as crypto.Signer and as PEM for Envoy.
type keyPair struct {
	signer crypto.Signer
	pem    PrivateKey
}

func newKeyPair(kind KeyType, pkcs8 bool) (*keyPair, error) {
	var signer crypto.Signer
	var err error
	switch bits := kind.rsaBits(); {
	case bits > 0:
		signer, err = rsa.GenerateKey(rand.Reader, bits)
	case kind == ECDSAP384:
		signer, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	default:
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("generating a private key: %w", err)
	}
	block, err := encodeKey(signer, pkcs8)
	if err != nil {
		return nil, fmt.Errorf("encoding the private key: %w", err)
	}
	return &keyPair{signer: signer, pem: pem.EncodeToMemory(block)}, nil
}

// encodeKey encodes a key as PKCS #8, or as PKCS #1 or SEC 1, which older programs need.
func encodeKey(signer crypto.Signer, pkcs8 bool) (*pem.Block, error) {
	switch key := signer.(type) {
	case *rsa.PrivateKey:
		if !pkcs8 {
			return &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}, nil
		}
	case *ecdsa.PrivateKey:
		if !pkcs8 {
			der, err := x509.MarshalECPrivateKey(key)
			return &pem.Block{Type: "EC PRIVATE KEY", Bytes: der}, err
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	return &pem.Block{Type: "PRIVATE KEY", Bytes: der}, err
}

// csr returns a certificate signing request with the SPIFFE ID as its only name, as Istio's CA expects.
func (k *keyPair) csr(id string) (string, error) {
	uri, err := url.Parse(id)
	if err != nil {
		return "", fmt.Errorf("the identity %q: %w", id, err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, k.signer)
	if err != nil {
		return "", fmt.Errorf("creating the CSR: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}
