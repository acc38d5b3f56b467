package ca

import (
	"crypto"
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

// newMaterial creates a root certificate with its key, and a separate key that signs tokens. With one key for both, the
// signature of a token could serve as the signature of a certificate, or the reverse.
func newMaterial(trustDomain string, now time.Time) (m Material, tokenKey []byte, err error) {
	if tokenKey, err = NewTokenKey(); err != nil {
		return m, nil, err
	}
	m.Active, err = newRootPair(trustDomain, now)
	return m, tokenKey, err
}

// NewTokenKey creates a key that signs tokens, in PEM.
func NewTokenKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the key for tokens: %w", err)
	}
	return encodeKey(key)
}

// newRootPair creates a root certificate and its key.
func newRootPair(trustDomain string, now time.Time) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("creating the root's key: %w", err)
	}
	root, err := newRoot(trustDomain, key, now)
	if err != nil {
		return KeyPair{}, fmt.Errorf("creating the root certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	return KeyPair{Certificate: File{rootCertFile, encodeCertificate(root)}, Key: File{rootKeyFile, keyPEM}}, err
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
		return nil, fmt.Errorf("generating a random serial number: %w", err)
	}
	if serial.Sign() == 0 {
		return newSerial()
	}
	return serial, nil
}

// parseRoot parses a root certificate. It may have a trust domain, as in the roots that this package creates.
func parseRoot(data []byte) (*x509.Certificate, error) {
	der, err := onlyBlock(data, pemCertificate)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if !root.IsCA || root.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("the certificate is not a CA certificate")
	}
	_, err = trustDomainOf(root)
	return root, err
}

// trustDomainOf returns the trust domain in a root certificate. It returns "" if the root has none, such as the roots
// that Istio creates.
func trustDomainOf(root *x509.Certificate) (string, error) {
	if len(root.URIs) == 0 {
		return "", nil
	}
	if len(root.URIs) != 1 || root.URIs[0].Scheme != "spiffe" || root.URIs[0].Path != "" {
		return "", errors.New("the certificate must contain at most one trust domain, and no other URI")
	}
	return root.URIs[0].Host, validateTrustDomain(root.URIs[0].Host)
}

// parseECKey parses a key of the curve P-256.
func parseECKey(data []byte) (*ecdsa.PrivateKey, error) {
	key, err := parseOnlyKey(data)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("the key is not an ECDSA key of the curve P-256")
	}
	return ec, nil
}

// parseOnlyKey parses a private key in PEM. It fails if data contains anything else.
func parseOnlyKey(data []byte) (crypto.Signer, error) {
	if block, _ := pem.Decode(data); block != nil && strings.HasSuffix(block.Type, pemPrivateKey) {
		if _, err := onlyBlock(data, block.Type); err != nil {
			return nil, err
		}
	}
	return parseAnyKey(data)
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
		return nil, errors.New("the text contains no PEM block")
	case block.Type != blockType:
		return nil, fmt.Errorf("the PEM block is a %.40q, not a %s", block.Type, blockType)
	case strings.TrimSpace(string(rest)) != "":
		return nil, errors.New("the text contains more than one PEM block, or other data")
	}
	return block.Bytes, nil
}

// checkRoot returns an error if the root cannot be used: it does not belong to trustDomain, or is not valid at the time
// now. remedy is the remedy of the store.
func checkRoot(root *x509.Certificate, trustDomain, remedy string, now time.Time) error {
	domain, err := trustDomainOf(root)
	if err != nil {
		return err
	}
	if trustDomain != "" && domain != "" && trustDomain != domain {
		return fmt.Errorf("the root belongs to trust domain %q, but the configuration specifies %q: set the trust domain back, or %s",
			domain, trustDomain, remedy)
	}
	if now.After(root.NotAfter) {
		return fmt.Errorf("the root certificate expired at %s, so that no member trusts the certificates that it signed: %s",
			root.NotAfter.Format(time.RFC3339), remedy)
	}
	if now.Before(root.NotBefore) {
		return fmt.Errorf("the root certificate is not valid before %s, and by this machine's clock it is %s: set the clock",
			root.NotBefore.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	return nil
}
