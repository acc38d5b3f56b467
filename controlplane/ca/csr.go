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

// Limits of a CSR. A CSR with an RSA key of 8192 bits has about 3 kB.
const (
	maxCSR = 16 << 10
	minRSA = 2048
	maxRSA = 8192
)

// parseCSR parses a PEM CSR. It fails if the signature does not prove possession of the key, if Envoy would not accept
// the key, or if the CSR requests unsupported extensions.
func parseCSR(data string) (*x509.CertificateRequest, error) {
	if len(data) > maxCSR {
		return nil, fmt.Errorf("the CSR has %d bytes; at most %d are allowed", len(data), maxCSR)
	}
	der, err := onlyBlock([]byte(data), "CERTIFICATE REQUEST")
	if err != nil {
		return nil, fmt.Errorf("reading the CSR: %w", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the CSR: %w", err)
	}
	// Check the key before the signature, because the verification of a signature is expensive if the key is huge.
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("checking the key of the CSR: %w", err)
	}
	if err := checkExtensions(csr); err != nil {
		return nil, err
	}
	if err := checkSignature(csr); err != nil {
		return nil, fmt.Errorf("verifying the CSR's signature: %w", err)
	}
	return csr, nil
}

// checkKey accepts only keys that all supported Envoy versions accept. By default, Envoy rejects Ed25519.
func checkKey(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Errorf("an RSA key of %d bits is not accepted; use one of %d to %d", bits, minRSA, maxRSA)
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return fmt.Errorf("an ECDSA key of the curve %s is not accepted; use P-256, P-384 or P-521", key.Params().Name)
		}
	default:
		return fmt.Errorf("a key of type %T is not accepted; use ECDSA P-256 or RSA of at least %d bits", key, minRSA)
	}
	return nil
}

// The extensions that a CSR may contain. The authority reads only the names (SANs), and ignores the other extensions:
// it determines the usage of a certificate itself.
var (
	extensionSANs             = asn1.ObjectIdentifier{2, 5, 29, 17}
	extensionKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	extensionExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
	extensionSubjectKeyID     = asn1.ObjectIdentifier{2, 5, 29, 14}
	extensionBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
)

// maxNames limits the number of names in a CSR. A workload needs only one.
const maxNames = 16

// checkExtensions refuses a CSR that requests extensions that workload certificates do not have.
func checkExtensions(csr *x509.CertificateRequest) error {
	if n := len(namesOf(csr)); n > maxNames {
		return fmt.Errorf("the CSR requests %d names; at most %d are allowed", n, maxNames)
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
				return errors.New("the CSR requests a CA certificate, which this authority does not issue")
			}
		default:
			return fmt.Errorf("the CSR requests the extension %s, which workload certificates do not have: remove the extension", e.Id)
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

// foreignName returns the first name in csr that is not the SPIFFE ID of caller, truncated, or "" if there is none. A
// CSR without names requests the client's own ID.
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
