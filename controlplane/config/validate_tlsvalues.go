package config

import (
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// cipherSuites are those that every Envoy served here takes by their names: with one that it does not know it refuses all
// that has it.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA",
	"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-SHA", "AES256-SHA",
}

// ecdhCurves are likewise those that they all take.
var ecdhCurves = []string{"X25519MLKEM768", "X25519", "P-256", "P-384", "P-521"}

// ciphers checks a list of cipher suites; s is the list.
func (s scope) ciphers(names []string) {
	for i, name := range names {
		if slices.Contains(cipherSuites, name) {
			continue
		}
		remedy := didYouMean(name, cipherSuites)
		if strings.HasPrefix(name, "TLS_") {
			remedy = "leave out those of TLS 1.3, which are always taken"
		}
		s.index(i).refuse(name, "not a cipher suite that proxies take", remedy)
	}
}

// meshTLS checks what a mesh configuration says of TLS; s is its place.
func (s scope) meshTLS(t *meshconfig.MeshConfig_TLSConfig) {
	s.field("cipherSuites").ciphers(t.GetCipherSuites())
	for i, name := range t.GetEcdhCurves() {
		if !slices.Contains(ecdhCurves, name) {
			s.item("ecdhCurves", i).refuse(name, "not a curve that proxies take", didYouMean(name, ecdhCurves))
		}
	}
}
