// Package translate turns a snapshot of the mesh and one proxy into that proxy's Envoy configuration: listeners, routes,
// clusters and endpoints. It is pure: the same input gives the same bytes, in the same order.
package translate

import (
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Listeners are all listeners of the proxy.
func Listeners(s *snapshot.Snapshot, p *Proxy) ([]*xds.Resource, error) {
	var out []*xds.Resource
	v := newView(s, p)
	inbound := ""
	if p.Interception == Redirect {
		inbound = virtualInbound
	}
	for _, l := range v.patches.Listeners(p.Type == Router, inbound, p.signed(p.capture().listeners(v))) {
		r, err := xds.NewResource(l.Name, l)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Routes are the named route configurations; names that lead nowhere are left out. No names at all: all that the
// proxy's listeners refer to.
func Routes(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v, c := newView(s, p), p.capture()
	if len(names) == 0 {
		names = c.routeNames(v)
	}
	var out []*xds.Resource
	for _, name := range names {
		r, err := c.route(v, name)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}
