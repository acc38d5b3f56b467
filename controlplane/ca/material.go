package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"
)

// Types of the PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
)

// material contains the first root certificate, its key and the token key of an authority.
type material struct {
	trustDomain string
	root        *x509.Certificate
	rootKey     *ecdsa.PrivateKey
	tokenKey    *ecdsa.PrivateKey
}

// newMaterial creates a root certificate with its key, and a separate key that signs tokens. With one key for both, the
// signature of a token could serve as the signature of a certificate, or the reverse.
func newMaterial(trustDomain string, now time.Time) (*material, error) {
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the root's key: %w", err)
	}
	tokenKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the key for tokens: %w", err)
	}
	root, err := newRoot(trustDomain, rootKey, now)
	if err != nil {
		return nil, fmt.Errorf("creating the root certificate: %w", err)
	}
	return &material{trustDomain: trustDomain, root: root, rootKey: rootKey, tokenKey: tokenKey}, nil
}

// newRoot creates a self-signed root certificate. Its SPIFFE ID is trustDomain, as the X509-SVID standard requires.
func newRoot(trustDomain string, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{trustDomain}, CommonName: "pilotfish mesh root"},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: trustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(rootTTL),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newSerial returns a random number of 128 bits that is not zero.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("a random serial number: %w", err)
	}
	if serial.Sign() == 0 {
		return newSerial()
	}
	return serial, nil
}

// parseRoot parses a root certificate and returns its trust domain.
func parseRoot(data []byte) (*x509.Certificate, string, error) {
	der, err := onlyBlock(data, pemCertificate)
	if err != nil {
		return nil, "", err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, "", err
	}
	if !root.IsCA || root.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, "", errors.New("the certificate is not a CA certificate")
	}
	if len(root.URIs) != 1 || root.URIs[0].Scheme != "spiffe" || root.URIs[0].Path != "" {
		return nil, "", errors.New("the certificate must contain exactly one trust domain")
	}
	domain := root.URIs[0].Host
	return root, domain, validateTrustDomain(domain)
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	der, err := onlyBlock(data, pemPrivateKey)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("the key is not an ECDSA key of the curve P-256")
	}
	return ec, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

// onlyBlock returns the content of the only PEM block in data. It fails if the block has another type than blockType,
// or if data contains anything else.
func onlyBlock(data []byte, blockType string) ([]byte, error) {
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return nil, errors.New("it contains no PEM block")
	case block.Type != blockType:
		return nil, fmt.Errorf("the PEM block is a %.40q, not a %s", block.Type, blockType)
	case strings.TrimSpace(string(rest)) != "":
		return nil, errors.New("it contains more than one PEM block, or other data")
	}
	return block.Bytes, nil
}

// check returns an error if the root certificate cannot be used: it does not match its key or trustDomain, or is not
// valid at the time now.
func (m *material) check(trustDomain string, now time.Time) error {
	if !m.rootKey.PublicKey.Equal(m.root.PublicKey) {
		return fmt.Errorf("%s is not the key of %s: restore both from the same backup", rootKeyFile, rootCertFile)
	}
	if trustDomain != "" && trustDomain != m.trustDomain {
		return fmt.Errorf("the root belongs to trust domain %q, but the configuration specifies %q: set the trust domain back, or %s",
			m.trustDomain, trustDomain, startAgain)
	}
	if now.After(m.root.NotAfter) {
		return fmt.Errorf("the root certificate expired at %s, so that no member trusts the certificates that it signed: %s",
			m.root.NotAfter.Format(time.RFC3339), startAgain)
	}
	if now.Before(m.root.NotBefore) {
		return fmt.Errorf("the root certificate is not valid before %s, and by this machine's clock it is %s: set the clock",
			m.root.NotBefore.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	return nil
}
