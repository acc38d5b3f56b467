package lastgood

import "bytes"

// secretType are resources that are nothing but secrets.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// marks of secrets that stand in a resource itself. Envoy takes private keys as PEM or PKCS#12; the others are filters that
// have passwords or keys in their configuration.
var secretMarks = []struct {
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

// HasSecret says whether there is something secret in a resource, or in a message with resources.
func HasSecret(typeURL string, content []byte) bool { return secretIn(typeURL, content) != "" }

// secretIn says what is secret in a resource, or nothing.
func secretIn(typeURL string, content []byte) string {
	if typeURL == secretType {
		return "it is a secret"
	}
	for _, m := range secretMarks {
		if bytes.Contains(content, m.pattern) {
			return m.what
		}
	}
	return ""
}
