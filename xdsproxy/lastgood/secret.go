package lastgood

import "bytes"

// secretType is the type URL of SDS secrets. The store never stores them.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// secretPatterns contains byte sequences that occur in resources with secrets, with a description of the secret. Envoy
// supports private keys in PEM and PKCS #12. The other patterns match filters whose configuration contains keys or
// passwords.
var secretPatterns = []struct {
	pattern []byte
	what    string
}{
	{[]byte("PRIVATE KEY-----"), "it contains a private key"},
	{[]byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07}, "it contains a PKCS #12 bundle"},
	{[]byte(`"oct"`), "it contains a symmetric JSON web key"},
	{[]byte("envoy.extensions.filters.http.api_key_auth."), "it contains API keys"},
	{[]byte("envoy.extensions.filters.http.basic_auth."), "it contains passwords"},
	{[]byte(secretType), "it contains a secret"},
	{[]byte("ISTIO_META_WASM_IMAGE_PULL_SECRET"), "it contains a pull secret"},
}

// HasSecret reports whether an encoded resource, or an encoded message with resources, contains a secret.
func HasSecret(typeURL string, content []byte) bool { return findSecret(typeURL, content) != "" }

// findSecret returns a description of the secret in a resource, or "" if there is none.
func findSecret(typeURL string, content []byte) string {
	if typeURL == secretType {
		return "it is a secret"
	}
	for _, m := range secretPatterns {
		if bytes.Contains(content, m.pattern) {
			return m.what
		}
	}
	return ""
}
