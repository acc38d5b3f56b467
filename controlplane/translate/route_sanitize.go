package translate

import (
	"net/http"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// sanitizeRoutes replaces or removes invalid routes, because Envoy rejects all routes if one field is invalid.
// Validation already refuses most documents with such rules. A route with an invalid action responds 500. A route with
// an invalid match is removed.
func sanitizeRoutes(routes *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	routes.MaxDirectResponseBodySizeBytes = u32(config.MaxDirectResponse)
	for _, host := range routes.GetVirtualHosts() {
		kept := host.Routes[:0:0]
		for _, route := range host.GetRoutes() {
			if r := sanitizeRoute(route); r != nil {
				kept = append(kept, r)
			}
		}
		host.Routes = kept
	}
	return routes
}

func sanitizeRoute(route *routev3.Route) *routev3.Route {
	switch {
	case route.Validate() == nil && len(route.GetDirectResponse().GetBody().GetInlineString()) <= config.MaxDirectResponse:
		return route
	case route.GetMatch().Validate() != nil:
		return nil
	}
	return &routev3.Route{Name: route.GetName(), Match: route.GetMatch(), Metadata: route.GetMetadata(), Action: &routev3.Route_DirectResponse{
		DirectResponse: &routev3.DirectResponseAction{
			Status: http.StatusInternalServerError,
			Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
				InlineString: "the rule for this request has values that Envoy does not accept: see the problems of its VirtualService\n",
			}},
		},
	}}
}
