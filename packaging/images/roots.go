package main

import (
	"encoding/pem"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootCertificates returns the public root certificates in PEM. It omits roots that are trusted only under conditions,
// because a PEM file cannot express them.
func rootCertificates() string {
	var text strings.Builder
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return text.String()
}
