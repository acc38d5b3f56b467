package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// secretType is the type URL of all served resources.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// Parts of the resource names of secrets in files, as Istio's control plane writes them.
const (
	certPrefix = "file-cert:"
	rootPrefix = "file-root:"
	systemRoot = "system"
	// crlInfix separates the path of the roots from the path of their CRLs. Istio's control plane does not use it.
	crlInfix = "~crl:"
)

// systemBundles are the paths where Linux distributions store the system's root certificates.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// secret is one SDS resource, encoded.
type secret struct {
	name string
	// version is a hash of the content.
	version string
	body    *anypb.Any
}

func newCertificateSecret(name string, m Material, provider *KeyProvider) (*secret, error) {
	cert := &tlsv3.TlsCertificate{CertificateChain: inlineBytes(m.Chain)}
	if provider == nil {
		cert.PrivateKey = inlineBytes(m.Key)
	} else {
		var err error
		if cert.PrivateKeyProvider, err = provider.wrapKey(m.Key); err != nil {
			return nil, err
		}
	}
	return newSecret(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: cert}})
}

// newValidationContext returns a validation context with roots and, if crl is not empty, revocation lists.
func newValidationContext(roots, crl []byte) *tlsv3.CertificateValidationContext {
	context := &tlsv3.CertificateValidationContext{TrustedCa: inlineBytes(roots)}
	if len(crl) > 0 {
		context.Crl = inlineBytes(crl)
	}
	return context
}

// newValidationSecret returns a secret with context. Unless domains is empty, each trust domain is verified against its
// own roots.
func newValidationSecret(name string, context *tlsv3.CertificateValidationContext, domains map[string][]byte) (*secret, error) {
	if len(domains) > 0 {
		validator, err := newDomainValidator(domains)
		if err != nil {
			return nil, err
		}
		context.CustomValidatorConfig = validator
	}
	return newSecret(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
}

// newDomainValidator configures Envoy to verify a certificate only against the roots of its own trust domain. So the CA
// of one domain cannot issue identities of another.
func newDomainValidator(domains map[string][]byte) (*corev3.TypedExtensionConfig, error) {
	config := &tlsv3.SPIFFECertValidatorConfig{}
	for _, name := range sortedNames(domains) {
		config.TrustDomains = append(config.TrustDomains,
			&tlsv3.SPIFFECertValidatorConfig_TrustDomain{Name: name, TrustBundle: inlineBytes(domains[name])})
	}
	typed, err := anypb.New(config)
	if err != nil {
		return nil, err
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.tls.cert_validator.spiffe", TypedConfig: typed}, nil
}

func inlineBytes(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

func newSecret(s *tlsv3.Secret) (*secret, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("sds: marshalling %q: %w", s.Name, err)
	}
	sum := sha256.Sum256(value)
	return &secret{name: s.Name, version: hex.EncodeToString(sum[:12]), body: &anypb.Any{TypeUrl: secretType, Value: value}}, nil
}

// secretFiles contains the paths of the files of one SDS resource.
type secretFiles struct {
	name string
	// A certificate has cert and key. Roots have roots and optionally crl.
	cert, key, roots, crl string
}

// parseName returns the files that a resource name refers to, and an error for other names.
func parseName(name string) (secretFiles, error) {
	switch {
	case strings.HasPrefix(name, certPrefix):
		cert, key, ok := strings.Cut(name[len(certPrefix):], "~")
		if !ok || cert == "" || key == "" {
			return secretFiles{}, fmt.Errorf("the secret name %q does not have the form %s<certificate>~<key>", name, certPrefix)
		}
		return secretFiles{name: name, cert: cert, key: key}, nil
	case strings.HasPrefix(name, rootPrefix):
		roots, revoked, listed := strings.Cut(name[len(rootPrefix):], crlInfix)
		if roots == "" || listed && revoked == "" {
			return secretFiles{}, fmt.Errorf("the secret name %q does not have the form %s<roots> or %[2]s<roots>%s<revocation lists>", name, rootPrefix, crlInfix)
		}
		if roots == systemRoot {
			roots = findSystemBundle()
		}
		return secretFiles{name: name, roots: roots, crl: revoked}, nil
	}
	return secretFiles{}, fmt.Errorf("the secret name %q is unknown: valid names are %s, %s, %s<certificate>~<key>, %s<roots>, %s%s",
		name, DefaultName, RootName, certPrefix, rootPrefix, rootPrefix, systemRoot)
}

func findSystemBundle() string {
	for _, path := range systemBundles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemBundles[0]
}

// paths returns the files to watch.
func (f secretFiles) paths() []string {
	switch {
	case f.crl != "":
		return []string{f.roots, f.crl}
	case f.roots != "":
		return []string{f.roots}
	}
	return []string{f.cert, f.key}
}

// read reads and verifies the files.
func (f secretFiles) read() (Material, error) {
	if f.roots == "" {
		return readKeyPair(f.cert, f.key)
	}
	roots, err := readRoots(f.roots)
	if err != nil || f.crl == "" {
		return Material{Roots: roots}, err
	}
	// A missing CRL file is an error: without it, Envoy would accept revoked certificates.
	lists, err := readBounded(f.crl)
	if err == nil {
		_, err = parseRevocations(lists)
	}
	if err != nil {
		return Material{}, fmt.Errorf("%s: %w", f.crl, err)
	}
	return Material{Roots: roots, Revoked: lists}, nil
}

func readRoots(path string) ([]byte, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	if _, err := parseCertificates(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return removePrivateKeys(text), nil
}

// readKeyPair reads a certificate and its key. It fails if they do not match, which happens while they are replaced one
// after the other; the caller then retains the old pair.
func readKeyPair(cert, key string) (Material, error) {
	chain, err := readBounded(cert)
	if err != nil {
		return Material{}, err
	}
	keyText, err := readBounded(key)
	if err != nil {
		return Material{}, err
	}
	leaf, err := parseKeyPair(chain, keyText)
	if err == nil {
		_, err = parseCertificates(chain) // verifies the intermediates, too
	}
	if err != nil {
		return Material{}, fmt.Errorf("loading the certificate %s with the key %s: %w", cert, key, err)
	}
	return Material{Chain: removePrivateKeys(chain), Key: keyText, Leaf: leaf}, nil
}
