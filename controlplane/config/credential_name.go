package config

import "strings"

// Schemes of credentialName. Names without a scheme are those of Secrets, too.
const (
	externalScheme = "sds://"
	secretScheme   = "kubernetes://"
)

// ExternalCredential returns the name of a certificate that an SDS server of the user provides. ok is false for other
// values of credentialName.
func ExternalCredential(credentialName string) (name string, ok bool) {
	return strings.CutPrefix(credentialName, externalScheme)
}

// SecretName returns the name of the Secret for a credentialName. If no SDS server provides an external credential, its
// certificate is in the Secret of this name, as in Istio.
func SecretName(credentialName string) string {
	if name, ok := ExternalCredential(credentialName); ok {
		return name
	}
	return strings.TrimPrefix(credentialName, secretScheme)
}
