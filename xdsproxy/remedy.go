package xdsproxy

import "strings"

// What a person can do.
const (
	reachRemedy      = "see that the control plane runs, that discoveryAddress is right, and that root certificate and token are in place"
	credentialRemedy = "see that what renews the token or the client certificate works"
	mendRemedy       = "mend the configuration that the reason names; the control plane sends it anew"
	stockRemedy      = "filters called istio.… are in Istio's own build of Envoy only: start istiod with PILOT_ENABLE_METADATA_EXCHANGE=false " +
		"and PILOT_ENABLE_ALPN_FILTER=false, and without metrics providers (defaultProviders.metrics, Telemetry)"
)

// remedyFor is what helps where Envoy has rejected configuration for the reason.
func remedyFor(reason string) string {
	if strings.Contains(reason, "registered implementation for 'istio.") {
		return stockRemedy
	}
	return mendRemedy
}
