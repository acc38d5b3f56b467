// Package tlspolicy restricts TLS as a compliance policy requires. The policies are those of Istio's COMPLIANCE_POLICY.
package tlspolicy

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
)

// Policy is the name of a policy. The empty policy restricts nothing.
type Policy string

const (
	// FIPS1402 allows TLS 1.2 with AES-GCM and the curve P-256.
	FIPS1402 Policy = "fips-140-2"
	// FIPS1403 allows TLS 1.2 with AES-GCM and TLS 1.3, with the curves P-256 and P-384.
	FIPS1403 Policy = "fips-140-3"
	// PostQuantum allows TLS 1.3 with the post-quantum key exchange X25519MLKEM768.
	PostQuantum Policy = "pqc"
)

// Names returns the names of all policies.
func Names() []string { return []string{string(FIPS1402), string(FIPS1403), string(PostQuantum)} }

// Check returns an error for an unknown policy. Narrow ignores unknown policies.
func (p Policy) Check() error {
	if p == "" || slices.Contains(Names(), string(p)) {
		return nil
	}
	return fmt.Errorf("%q is not a TLS policy: use one of %s", string(p), strings.Join(Names(), ", "))
}

// Narrow restricts a TLS configuration as the policy requires. Go programs cannot select the cipher suites of TLS 1.3.
// The suite is AES-GCM if both machines have AES hardware, or with GODEBUG=fips140=only.
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

// suites returns the cipher suites of TLS 1.2 that both FIPS policies allow.
func suites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}
}
