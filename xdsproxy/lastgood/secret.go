package lastgood

import "bytes"

// secretType is the type URL of secrets, which are never stored.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// secretPatterns find secrets inside other resources. Envoy supports private keys in PEM and PKCS #12; the other
// patterns are filters with passwords or keys in their configuration.
var secretPatterns = []struct {
	pattern []byte
	what    string
}{
	{[]byte("PRIVATE KEY-----"), "a private key is in it"},
	{[]byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07}, "a PKCS #12 bundle is in it"},
	{[]byte(`"oct"`), "a symmetric JSON web key is in it"},
	{[]byte("envoy.extensions.filters.http.api_key_auth."), "API keys are in it"},
	{[]byte("envoy.extensions.filters.http.basic_auth."), "passwords are in it"},
	{[]byte(secretType), "a secret is in it"},
	{[]byte("ISTIO_META_WASM_IMAGE_PULL_SECRET"), "a pull secret is in it"},
}

// HasSecret reports whether a resource, or a message with resources, contains a secret.
func HasSecret(typeURL string, content []byte) bool { return findSecret(typeURL, content) != "" }

// findSecret describes the secret in a resource, or returns "".
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
