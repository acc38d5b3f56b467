// Package tlspolicy narrows TLS to what a compliance policy allows. Names and meaning are those of Istio's COMPLIANCE_POLICY.
package tlspolicy

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
)

// Policy is the name of a policy; empty is none.
type Policy string

const (
	// FIPS1402 is TLS 1.2 with AES-GCM and the curve P-256.
	FIPS1402 Policy = "fips-140-2"
	// FIPS1403 is TLS 1.2 with AES-GCM, or TLS 1.3, and the curves P-256 and P-384.
	FIPS1403 Policy = "fips-140-3"
	// PostQuantum is TLS 1.3 with a key exchange that a quantum computer does not break: X25519MLKEM768.
	PostQuantum Policy = "pqc"
)

// Names are those of all policies.
func Names() []string { return []string{string(FIPS1402), string(FIPS1403), string(PostQuantum)} }

// Check returns an error for a policy that does not exist. Its Narrow changes nothing.
func (p Policy) Check() error {
	if p == "" || slices.Contains(Names(), string(p)) {
		return nil
	}
	return fmt.Errorf("%q is not a TLS policy: use one of %s", string(p), strings.Join(Names(), ", "))
}

// Narrow removes from a TLS configuration what the policy does not allow. Go does not let a program choose the cipher
// suites of TLS 1.3: with AES hardware on both sides, or with GODEBUG=fips140=only, the suite is AES-GCM.
func (p Policy) Narrow(c *tls.Config) {
	switch p {
	case FIPS1402:
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		c.CipherSuites, c.CurvePreferences = suites(), []tls.CurveID{tls.CurveP256}
	case FIPS1403:
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
		c.CipherSuites, c.CurvePreferences = suites(), []tls.CurveID{tls.CurveP256, tls.CurveP384}
	case PostQuantum:
		c.MinVersion, c.CurvePreferences = tls.VersionTLS13, []tls.CurveID{tls.X25519MLKEM768}
	}
}

// suites are those of TLS 1.2 that both FIPS policies allow.
func suites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}
}
