package snapshot

import (
	"fmt"
	"iter"

	networking "istio.io/api/networking/v1alpha3"
)

// placed is a destination and where its document names it.
type placed struct {
	list        string // http, tcp or tls
	route       int
	field       string
	at          int // in the field; -1 where that is no list
	destination *networking.Destination
}

// path is that of the field. It is made only for who asks: all destinations are looked at often, and few are told of.
func (p placed) path() string {
	if p.at < 0 {
		return fmt.Sprintf("spec.%s[%d].%s", p.list, p.route, p.field)
	}
	return fmt.Sprintf("spec.%s[%d].%s[%d].destination", p.list, p.route, p.field, p.at)
}

// destinations are all places that a VirtualService sends traffic to.
func destinations(vs *networking.VirtualService) iter.Seq[placed] {
	return func(yield func(placed) bool) {
		for i, r := range vs.GetHttp() {
			if !httpDestinations(i, r, yield) {
				return
			}
		}
		for i, r := range vs.GetTcp() {
			if !layer4("tcp", i, r.GetRoute(), yield) {
				return
			}
		}
		for i, r := range vs.GetTls() {
			if !layer4("tls", i, r.GetRoute(), yield) {
				return
			}
		}
	}
}

func httpDestinations(i int, r *networking.HTTPRoute, yield func(placed) bool) (more bool) {
	for j, d := range r.GetRoute() {
		if !yield(placed{"http", i, "route", j, d.GetDestination()}) {
			return false
		}
	}
	if r.GetMirror() != nil && !yield(placed{"http", i, "mirror", -1, r.GetMirror()}) {
		return false
	}
	for j, m := range r.GetMirrors() {
		if !yield(placed{"http", i, "mirrors", j, m.GetDestination()}) {
			return false
		}
	}
	return true
}

func layer4(list string, i int, routes []*networking.RouteDestination, yield func(placed) bool) (more bool) {
	for j, d := range routes {
		if !yield(placed{list, i, "route", j, d.GetDestination()}) {
			return false
		}
	}
	return true
}
