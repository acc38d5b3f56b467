package config

import (
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// cipherSuites lists the suites that all supported Envoy versions have. Envoy rejects a resource with an unknown suite.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA",
	"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-SHA", "AES256-SHA",
}

// ecdhCurves lists the curves that all supported Envoy versions have.
var ecdhCurves = []string{"X25519MLKEM768", "X25519", "P-256", "P-384", "P-521"}

// checkCiphers checks the cipher suites names, the value of the field s.
func (s validator) checkCiphers(names []string) {
	for i, name := range names {
		if slices.Contains(cipherSuites, name) {
			continue
		}
		remedy := didYouMean(name, cipherSuites)
		if strings.HasPrefix(name, "TLS_") {
			remedy = "remove the suites of TLS 1.3, which are always enabled"
		}
		s.index(i).refuse(name, "Envoy does not support this cipher suite", remedy)
	}
}

// checkMeshTLS checks the TLS settings t of a mesh configuration, the value of the field s.
func (s validator) checkMeshTLS(t *meshconfig.MeshConfig_TLSConfig) {
	s.field("cipherSuites").checkCiphers(t.GetCipherSuites())
	for i, name := range t.GetEcdhCurves() {
		if !slices.Contains(ecdhCurves, name) {
			s.item("ecdhCurves", i).refuse(name, "Envoy does not support this curve", didYouMean(name, ecdhCurves))
		}
	}
}
