package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/pemtext"
)

// SecretSpec is the content of a Kubernetes Secret with a certificate, CA certificates or registry credentials. It is
// written only to the file of last accepted documents: String and JSON do not reveal it.
type SecretSpec struct {
	// Certificate is a certificate chain and Key its private key, in PEM; empty if the Secret has none.
	Certificate, Key []byte
	// Authorities are CA certificates, and Revoked the certificate revocation lists of these CAs, in PEM.
	Authorities, Revoked []byte
	// Registries are the credentials for container registries, in Docker's JSON format.
	Registries []byte
	// Accounts are the service accounts whose proxies may receive the Secret. nil means all service accounts of the
	// namespace.
	Accounts []string
}

// AccountsAnnotation lists the service accounts whose proxies may receive a Secret, separated by commas.
const AccountsAnnotation = "pilotfish.dev/service-accounts"

// IsAllowedFor reports whether proxies of the service account account may receive the Secret.
func (s *SecretSpec) IsAllowedFor(account string) bool {
	return s.Accounts == nil || slices.Contains(s.Accounts, account)
}

func parseAccounts(annotations map[string]string) []string {
	text, ok := annotations[AccountsAnnotation]
	if !ok {
		return nil
	}
	accounts := []string{}
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			accounts = append(accounts, name)
		}
	}
	return accounts
}

// String does not reveal the secret.
func (*SecretSpec) String() string { return "(a secret)" }

// GoString does not reveal the secret.
func (*SecretSpec) GoString() string { return "(a secret)" }

// MarshalJSON does not reveal the secret.
func (*SecretSpec) MarshalJSON() ([]byte, error) { return []byte(`"(a secret)"`), nil }

// Equal reports whether two specs are equal.
func (s *SecretSpec) Equal(o *SecretSpec) bool {
	return bytes.Equal(s.Certificate, o.Certificate) && bytes.Equal(s.Key, o.Key) &&
		bytes.Equal(s.Authorities, o.Authorities) && bytes.Equal(s.Revoked, o.Revoked) &&
		bytes.Equal(s.Registries, o.Registries) &&
		slices.Equal(s.Accounts, o.Accounts) && (s.Accounts == nil) == (o.Accounts == nil)
}

var secretFields = []string{"apiVersion", "kind", "metadata", "data", "stringData", "type", "immutable"}

// Keys of a Secret's data. The first name of each list is the key in Kubernetes' TLS Secrets, the second is Istio's
// alternative.
var (
	certificateNames = []string{"tls.crt", "cert"}
	keyNames         = []string{"tls.key", "key"}
	authorityNames   = []string{"ca.crt", "cacert"}
	revokedNames     = []string{"ca.crl", "crl"}
)

// readSecret returns the content of a Secret, or nil if the Secret contains nothing that proxies use. The problems that
// it records do not reveal the content.
func (d *document) readSecret(root *yaml.Node) *SecretSpec {
	content := map[string][]byte{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		value := followAlias(root.Content[i+1])
		switch root.Content[i].Value {
		case "data":
			maps.Copy(content, d.readSecretParts(value, "data", base64.StdEncoding.DecodeString))
		case "stringData": // has precedence over data
			maps.Copy(content, d.readSecretParts(value, "stringData", func(s string) ([]byte, error) { return []byte(s), nil }))
		}
	}
	spec := &SecretSpec{
		Certificate: firstValue(content, certificateNames), Key: firstValue(content, keyNames),
		Authorities: firstValue(content, authorityNames), Revoked: firstValue(content, revokedNames),
		Registries: content[registriesName],
	}
	if len(spec.Certificate)+len(spec.Key)+len(spec.Authorities)+len(spec.Registries) == 0 {
		return nil
	}
	if !d.refused {
		d.checkSecret(spec)
	}
	return spec
}

func (d *document) readSecretParts(n *yaml.Node, path string, decode func(string) ([]byte, error)) map[string][]byte {
	out := map[string][]byte{}
	if isNull(n) {
		return out
	}
	if n.Kind != yaml.MappingNode {
		d.refuseAt(d.nodePosition(n), path, "", "expected fields", "write the fields below it, one `name: value` per line")
		return out
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, followAlias(n.Content[i+1])
		at := path + "[" + name + "]"
		d.setPosition(at, n.Content[i], value)
		if !slices.Contains(slices.Concat(certificateNames, keyNames, authorityNames, revokedNames, []string{registriesName}), name) || isNull(value) {
			continue // not used by proxies
		}
		text := strings.Join(strings.Fields(value.Value), "")
		if path == "stringData" {
			text = value.Value
		}
		part, err := decode(text)
		if value.Kind != yaml.ScalarNode || err != nil {
			d.refuseAt(d.nodePosition(value), at, "", "not base64", "encode it, or move the unencoded value to stringData")
			continue
		}
		out[name] = part
	}
	return out
}

func firstValue(content map[string][]byte, names []string) []byte {
	for _, name := range names {
		if part := content[name]; len(part) > 0 {
			return part
		}
	}
	return nil
}

// partField returns the field path of the first of names that the Secret has. places are the positions of its fields.
// It returns "data" if the Secret has none of names.
func partField(places map[string]Position, names []string) string {
	for _, path := range []string{"stringData", "data"} { // stringData has precedence
		for _, name := range names {
			if _, ok := places[path+"["+name+"]"]; ok {
				return path + "[" + name + "]"
			}
		}
	}
	return "data"
}

// CertificateField returns the field path of a Secret's certificate.
func CertificateField(r *Resource) string { return partField(r.Positions, certificateNames) }

// refusePart refuses the Secret because of the value under one of names.
func (d *document) refusePart(names []string, message, remedy string) {
	field := partField(d.positions, names)
	d.refuseAt(d.fieldPosition(field), field, "", message, remedy)
}

// checkSecret checks that proxies can use the content. It does not report the text of parser errors, because they may
// quote the content.
func (d *document) checkSecret(spec *SecretSpec) {
	switch {
	case len(spec.Certificate) > 0 && len(spec.Key) == 0:
		d.refusePart(certificateNames, "a certificate without its private key", "add tls.key")
	case len(spec.Key) > 0 && len(spec.Certificate) == 0:
		d.refusePart(keyNames, "a private key without its certificate", "add tls.crt")
	case len(spec.Key) > 0:
		if err := checkPair(spec); err != nil {
			d.refusePart(certificateNames, err.Error(), "set tls.crt to the certificate chain, with the server's own certificate first, and tls.key to its private key, both in PEM")
		}
	}
	if len(spec.Authorities) > 0 && (!x509.NewCertPool().AppendCertsFromPEM(spec.Authorities) || checkCertificates(spec.Authorities) != nil) {
		d.refusePart(authorityNames, "not a list of valid certificates", "set CA certificates in PEM")
	}
	if len(spec.Revoked) > 0 {
		d.checkRevoked(spec)
	}
	if len(spec.Registries) > 0 {
		if err := checkRegistries(spec.Registries); err != nil {
			d.refusePart([]string{registriesName}, err.Error(), "create the Secret with kubectl create secret docker-registry, or use the file that docker login writes")
		}
	}
}

func checkPair(spec *SecretSpec) error {
	if _, err := tls.X509KeyPair(spec.Certificate, spec.Key); err != nil {
		if block, _ := pem.Decode(spec.Certificate); block == nil {
			return errors.New("tls.crt is not PEM")
		}
		if block, _ := pem.Decode(spec.Key); block == nil {
			return errors.New("tls.key is not PEM")
		}
		return errors.New("the certificate and the key do not match, or cannot be read")
	}
	if err := checkCertificates(spec.Certificate); err != nil {
		return fmt.Errorf("tls.crt: %w", err)
	}
	return checkStrength(spec)
}

// checkCertificates fails if any certificate of chain cannot be parsed, because Envoy would then refuse the whole
// chain.
func checkCertificates(chain []byte) error {
	blocks, err := pemtext.Blocks(chain)
	if err != nil {
		return err
	}
	n := 0
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("certificate %d cannot be read", n)
		}
	}
	return nil
}

// checkStrength fails if the private key is shorter than Envoy accepts.
func checkStrength(spec *SecretSpec) error {
	pair, err := tls.X509KeyPair(spec.Certificate, spec.Key)
	if err != nil {
		return errors.New("the certificate cannot be read")
	}
	switch key := pair.PrivateKey.(type) {
	case *rsa.PrivateKey:
		if bits := key.N.BitLen(); bits < 2048 {
			return fmt.Errorf("an RSA key of %d bits: Envoy requires at least 2048 bits", bits)
		}
	case *ecdsa.PrivateKey:
		if bits := key.Params().BitSize; bits < 256 {
			return fmt.Errorf("a key of the curve %s: Envoy accepts P-256, P-384 and P-521", key.Params().Name)
		}
	}
	return nil
}

func (d *document) checkRevoked(spec *SecretSpec) {
	if len(spec.Authorities) == 0 {
		d.refusePart(revokedNames, "a certificate revocation list without its CA certificate", "add ca.crt")
	}
	blocks, err := pemtext.Blocks(spec.Revoked)
	for i, block := range blocks {
		if _, err := x509.ParseRevocationList(block.Bytes); err != nil || block.Type != "X509 CRL" {
			d.refusePart(revokedNames, fmt.Sprintf("part %d is not a certificate revocation list", i+1), "set PEM blocks of type X509 CRL")
			return
		}
	}
	switch {
	case err != nil:
		d.refusePart(revokedNames, err.Error(), "set complete PEM blocks of type X509 CRL")
	case len(blocks) == 0:
		d.refusePart(revokedNames, "it contains no certificate revocation list", "set PEM blocks of type X509 CRL")
	}
}

// encodeSecret returns the data of a Secret.
func encodeSecret(s *SecretSpec) map[string]any {
	data := map[string]any{}
	for name, part := range map[string][]byte{"tls.crt": s.Certificate, "tls.key": s.Key, "ca.crt": s.Authorities, "ca.crl": s.Revoked, registriesName: s.Registries} {
		if len(part) > 0 {
			data[name] = base64.StdEncoding.EncodeToString(part)
		}
	}
	return data
}
