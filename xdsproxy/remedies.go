package xdsproxy

import "strings"

// The remedies of conditions, for users.
const (
	ConnectRemedy    = "check that the control plane runs, that discoveryAddress is correct, and that the root certificate and the token exist"
	credentialRemedy = "check the process that renews the token or the client certificate"
	fixRemedy        = "fix the configuration that the reason names; the control plane then sends it again"
	stockEnvoyRemedy = "filters named istio.… exist only in Istio's build of Envoy: start istiod with PILOT_ENABLE_METADATA_EXCHANGE=false " +
		"and PILOT_ENABLE_ALPN_FILTER=false, and without metrics providers (defaultProviders.metrics, Telemetry)"
)

// remedyFor returns the remedy for a NACK with this reason.
func remedyFor(reason string) string {
	if strings.Contains(reason, "registered implementation for 'istio.") {
		return stockEnvoyRemedy
	}
	return fixRemedy
}
