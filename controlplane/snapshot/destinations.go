package snapshot

import (
	"fmt"
	"iter"

	networking "istio.io/api/networking/v1alpha3"
)

// DestinationRef is a destination with its position in the document.
type DestinationRef struct {
	list        string // http, tcp or tls
	route       int
	field       string
	index       int // index in the field, or -1 if the field is not a list
	Destination *networking.Destination
}

// Path returns the field path of the destination. It is computed only for findings, because most destinations have no
// finding.
func (p DestinationRef) Path() string {
	if p.index < 0 {
		return fmt.Sprintf("spec.%s[%d].%s", p.list, p.route, p.field)
	}
	return fmt.Sprintf("spec.%s[%d].%s[%d].destination", p.list, p.route, p.field, p.index)
}

// IsMirror reports whether the destination receives copies of requests, whose responses are dropped.
func (p DestinationRef) IsMirror() bool { return p.field == "mirror" || p.field == "mirrors" }

// IsHTTP reports whether requests, not connections, are routed to the destination.
func (p DestinationRef) IsHTTP() bool { return p.list == "http" }

// Destinations returns all destinations of a VirtualService.
func Destinations(vs *networking.VirtualService) iter.Seq[DestinationRef] {
	return func(yield func(DestinationRef) bool) {
		for i, r := range vs.GetHttp() {
			if !httpDestinations(i, r, yield) {
				return
			}
		}
		for i, r := range vs.GetTcp() {
			if !l4Destinations("tcp", i, r.GetRoute(), yield) {
				return
			}
		}
		for i, r := range vs.GetTls() {
			if !l4Destinations("tls", i, r.GetRoute(), yield) {
				return
			}
		}
	}
}

func httpDestinations(i int, r *networking.HTTPRoute, yield func(DestinationRef) bool) (more bool) {
	for j, d := range r.GetRoute() {
		if !yield(DestinationRef{"http", i, "route", j, d.GetDestination()}) {
			return false
		}
	}
	if r.GetMirror() != nil && !yield(DestinationRef{"http", i, "mirror", -1, r.GetMirror()}) {
		return false
	}
	for j, m := range r.GetMirrors() {
		if !yield(DestinationRef{"http", i, "mirrors", j, m.GetDestination()}) {
			return false
		}
	}
	return true
}

func l4Destinations(list string, i int, routes []*networking.RouteDestination, yield func(DestinationRef) bool) (more bool) {
	for j, d := range routes {
		if !yield(DestinationRef{list, i, "route", j, d.GetDestination()}) {
			return false
		}
	}
	return true
}
