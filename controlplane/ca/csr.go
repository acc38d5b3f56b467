package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
)

// Bounds of what a caller may send: an RSA key of 8192 bits makes a CSR of about 3 kB.
const (
	largestCSR = 16 << 10
	leastRSA   = 2048
	largestRSA = 8192
)

// parseCSR reads a request in PEM whose signature proves that the sender has the key, and whose key is strong enough.
func parseCSR(data string) (*x509.CertificateRequest, error) {
	if len(data) > largestCSR {
		return nil, fmt.Errorf("the CSR has %d bytes; at most %d are allowed", len(data), largestCSR)
	}
	der, err := onlyBlock([]byte(data), "CERTIFICATE REQUEST")
	if err != nil {
		return nil, fmt.Errorf("the CSR: %w", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("the CSR: %w", err)
	}
	// The key comes first: checking a signature with a huge one would cost much.
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("the CSR: %w", err)
	}
	if err := checkExtensions(csr); err != nil {
		return nil, fmt.Errorf("the CSR: %w", err)
	}
	if err := checkSignature(csr); err != nil {
		return nil, fmt.Errorf("the CSR's signature: %w", err)
	}
	return csr, nil
}

// checkKey takes the keys that every Envoy takes. Envoys refuse Ed25519 by default.
func checkKey(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < leastRSA || bits > largestRSA {
			return fmt.Errorf("an RSA key of %d bits is not accepted; use one of %d to %d", bits, leastRSA, largestRSA)
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return fmt.Errorf("an ECDSA key of the curve %s is not accepted; use P-256, P-384 or P-521", key.Params().Name)
		}
	default:
		return fmt.Errorf("a key of type %T is not accepted; use ECDSA P-256 or RSA of at least %d bits", key, leastRSA)
	}
	return nil
}

// The extensions that a request may ask for. None but the names is looked at: what a certificate is good for is not the
// caller's choice.
var (
	extensionSANs             = asn1.ObjectIdentifier{2, 5, 29, 17}
	extensionKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	extensionExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
	extensionSubjectKeyID     = asn1.ObjectIdentifier{2, 5, 29, 14}
	extensionBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
)

// mostNames bounds the names of a request; a workload has one.
const mostNames = 16

// checkExtensions refuses requests for what no workload gets.
func checkExtensions(csr *x509.CertificateRequest) error {
	if n := len(namesOf(csr)); n > mostNames {
		return fmt.Errorf("it asks for %d names; at most %d are allowed", n, mostNames)
	}
	for _, e := range csr.Extensions {
		switch {
		case e.Id.Equal(extensionSANs), e.Id.Equal(extensionKeyUsage), e.Id.Equal(extensionExtKeyUsage), e.Id.Equal(extensionSubjectKeyID):
		case e.Id.Equal(extensionBasicConstraints):
			var basic struct {
				IsCA       bool `asn1:"optional"`
				MaxPathLen int  `asn1:"optional,default:-1"`
			}
			if _, err := asn1.Unmarshal(e.Value, &basic); err != nil || basic.IsCA {
				return errors.New("it asks for the certificate of an authority, which nobody gets")
			}
		default:
			return fmt.Errorf("it asks for the extension %s, which no workload gets: leave it out", e.Id)
		}
	}
	return nil
}

func checkSignature(csr *x509.CertificateRequest) error {
	if csr.SignatureAlgorithm == x509.SHA1WithRSA || csr.SignatureAlgorithm == x509.ECDSAWithSHA1 {
		return errors.New("SHA-1 is not accepted; use SHA-256")
	}
	return csr.CheckSignature()
}

// foreignName is the first name in a request that is not the caller's own SPIFFE ID; empty when there is none. A request
// without names is for the caller's own.
func foreignName(csr *x509.CertificateRequest, caller Identity) string {
	own := caller.SPIFFEID()
	for _, name := range namesOf(csr) {
		if name != own {
			return fmt.Sprintf("%.300s", name)
		}
	}
	return ""
}

func namesOf(csr *x509.CertificateRequest) []string {
	names := slices.Concat(csr.DNSNames, csr.EmailAddresses)
	for _, uri := range csr.URIs {
		names = append(names, uri.String())
	}
	for _, ip := range csr.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
