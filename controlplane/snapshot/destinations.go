package snapshot

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// placed is a destination and the path of the field that names it.
type placed struct {
	path        string
	destination *networking.Destination
}

// destinations are all places that a VirtualService sends traffic to.
func destinations(vs *networking.VirtualService) []placed {
	var out []placed
	for i, r := range vs.GetHttp() {
		at := fmt.Sprintf("spec.http[%d]", i)
		for j, d := range r.GetRoute() {
			out = append(out, placed{fmt.Sprintf("%s.route[%d].destination", at, j), d.GetDestination()})
		}
		if r.GetMirror() != nil {
			out = append(out, placed{at + ".mirror", r.GetMirror()})
		}
		for j, m := range r.GetMirrors() {
			out = append(out, placed{fmt.Sprintf("%s.mirrors[%d].destination", at, j), m.GetDestination()})
		}
	}
	for i, r := range vs.GetTcp() {
		out = append(out, layer4("tcp", i, r.GetRoute())...)
	}
	for i, r := range vs.GetTls() {
		out = append(out, layer4("tls", i, r.GetRoute())...)
	}
	return out
}

func layer4(field string, i int, routes []*networking.RouteDestination) []placed {
	var out []placed
	for j, d := range routes {
		out = append(out, placed{fmt.Sprintf("spec.%s[%d].route[%d].destination", field, i, j), d.GetDestination()})
	}
	return out
}
