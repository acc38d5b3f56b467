package envoyfilter

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// Bootstrap returns the message that the patches merge into the bootstrap of a sidecar or gateway. It returns nil if no
// patch applies to the bootstrap.
func (s *Set) Bootstrap(gateway bool) *bootstrapv3.Bootstrap {
	var out *bootstrapv3.Bootstrap
	for _, p := range s.patchesFor(networking.EnvoyFilter_BOOTSTRAP) {
		if p.appliesTo(Gateway) != gateway && p.match.GetContext() != networking.EnvoyFilter_ANY || p.match.GetContext() == networking.EnvoyFilter_WAYPOINT {
			continue
		}
		if out == nil {
			out = &bootstrapv3.Bootstrap{}
		}
		p.merge(out, p.value)
	}
	return out
}
