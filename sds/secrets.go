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

// secretType is the type URL of every resource served here.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// The prefixes of names that stand for files, as Istio's control plane writes them.
const (
	certPrefix = "file-cert:"
	rootPrefix = "file-root:"
	systemRoot = "system"
	// revokedInfix stands between roots and lists of what they have revoked. Istio's control plane has no name for both.
	revokedInfix = "~crl:"
)

// systemBundles are where the distributions keep the system's roots.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// secret is one resource, ready to be sent.
type secret struct {
	name string
	// version is a hash of the content.
	version string
	body    *anypb.Any
}

func certificateSecret(name string, m Material, provider *KeyProvider) (*secret, error) {
	cert := &tlsv3.TlsCertificate{CertificateChain: inline(m.Chain)}
	if provider == nil {
		cert.PrivateKey = inline(m.Key)
	} else {
		var err error
		if cert.PrivateKeyProvider, err = provider.of(m.Key); err != nil {
			return nil, err
		}
	}
	return newSecret(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: cert}})
}

// rootSecret has the roots, lists of what is revoked, and, where trust domains have roots of their own, which those are.
func rootSecret(name string, roots, crl []byte, domains map[string][]byte) (*secret, error) {
	return trustSecret(name, trustedRoots(roots, crl), domains)
}

func trustedRoots(roots, crl []byte) *tlsv3.CertificateValidationContext {
	context := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)}
	if len(crl) > 0 {
		context.Crl = inline(crl)
	}
	return context
}

func trustSecret(name string, context *tlsv3.CertificateValidationContext, domains map[string][]byte) (*secret, error) {
	if len(domains) > 0 {
		validator, err := domainValidator(domains)
		if err != nil {
			return nil, err
		}
		context.CustomValidatorConfig = validator
	}
	return newSecret(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
}

// domainValidator has Envoy hold a certificate against the roots of its own trust domain only: an authority of one domain
// cannot speak for another.
func domainValidator(domains map[string][]byte) (*corev3.TypedExtensionConfig, error) {
	config := &tlsv3.SPIFFECertValidatorConfig{}
	for _, name := range sortedNames(domains) {
		config.TrustDomains = append(config.TrustDomains,
			&tlsv3.SPIFFECertValidatorConfig_TrustDomain{Name: name, TrustBundle: inline(domains[name])})
	}
	typed, err := anypb.New(config)
	if err != nil {
		return nil, err
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.tls.cert_validator.spiffe", TypedConfig: typed}, nil
}

func inline(b []byte) *corev3.DataSource {
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

// files are what a name of a file resource stands for.
type files struct {
	name string
	// cert and key are set for a certificate, roots for roots, and revoked with them where lists go with those.
	cert, key, roots, revoked string
}

// parseName takes the name of a file resource apart.
func parseName(name string) (files, error) {
	switch {
	case strings.HasPrefix(name, certPrefix):
		cert, key, ok := strings.Cut(name[len(certPrefix):], "~")
		if !ok || cert == "" || key == "" {
			return files{}, fmt.Errorf("the secret name %q is not %s<certificate>~<key>", name, certPrefix)
		}
		return files{name: name, cert: cert, key: key}, nil
	case strings.HasPrefix(name, rootPrefix):
		roots, revoked, listed := strings.Cut(name[len(rootPrefix):], revokedInfix)
		if roots == "" || listed && revoked == "" {
			return files{}, fmt.Errorf("the secret name %q is not %s<roots> or %[2]s<roots>%s<revocation lists>", name, rootPrefix, revokedInfix)
		}
		if roots == systemRoot {
			roots = systemBundle()
		}
		return files{name: name, roots: roots, revoked: revoked}, nil
	}
	return files{}, fmt.Errorf("the secret name %q is not known: it is none of %s, %s, %s<certificate>~<key>, %s<roots>, %s%s",
		name, DefaultName, RootName, certPrefix, rootPrefix, rootPrefix, systemRoot)
}

func systemBundle() string {
	for _, path := range systemBundles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemBundles[0]
}

// paths are the files to watch.
func (f files) paths() []string {
	switch {
	case f.revoked != "":
		return []string{f.roots, f.revoked}
	case f.roots != "":
		return []string{f.roots}
	}
	return []string{f.cert, f.key}
}

// read reads and checks the files.
func (f files) read() (Material, error) {
	if f.roots == "" {
		return readPair(f.cert, f.key)
	}
	roots, err := readRoots(f.roots)
	if err != nil || f.revoked == "" {
		return Material{Roots: roots}, err
	}
	// Lists that were asked for and are not there are no reason to trust everybody.
	lists, err := readBounded(f.revoked)
	if err == nil {
		_, err = parseRevocations(lists)
	}
	if err != nil {
		return Material{}, fmt.Errorf("%s: %w", f.revoked, err)
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
	return withoutKeys(text), nil
}

// readPair reads a certificate and its key. While files are being replaced one by one they may not belong together:
// then this is an error, and the old pair stays.
func readPair(cert, key string) (Material, error) {
	chain, err := readBounded(cert)
	if err != nil {
		return Material{}, err
	}
	keyText, err := readBounded(key)
	if err != nil {
		return Material{}, err
	}
	leaf, err := parsePair(chain, keyText)
	if err == nil {
		_, err = parseCertificates(chain) // those behind the first, too
	}
	if err != nil {
		return Material{}, fmt.Errorf("%s and %s: %w", cert, key, err)
	}
	return Material{Chain: withoutKeys(chain), Key: keyText, Leaf: leaf}, nil
}
