package config

import "strings"

// Schemes of a credentialName. A name without a scheme refers to a Secret, as with secretScheme.
const (
	externalScheme = "sds://"
	secretScheme   = "kubernetes://"
)

// ExternalCredential returns the name under which the user's SDS server provides the certificate. ok is false if
// credentialName refers to a Secret.
func ExternalCredential(credentialName string) (name string, ok bool) {
	return strings.CutPrefix(credentialName, externalScheme)
}

// SecretName returns the name of the Secret to which credentialName refers. It accepts external names too: as in Istio,
// if no SDS server provides the certificate, a Secret of the same name does.
func SecretName(credentialName string) string {
	if name, ok := ExternalCredential(credentialName); ok {
		return name
	}
	return strings.TrimPrefix(credentialName, secretScheme)
}
