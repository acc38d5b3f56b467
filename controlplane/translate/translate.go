// Package translate turns a snapshot of the mesh and one proxy into that proxy's Envoy configuration: listeners,
// routes, clusters and endpoints. It is pure: the same input produces the same bytes in the same order.
package translate

import (
	"net/netip"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Listeners returns all listeners of the proxy.
func Listeners(s *snapshot.Snapshot, p *Proxy) ([]*xds.Resource, error) {
	v := newView(s, p)
	inbound := ""
	if p.Interception == Redirect {
		inbound = virtualInbound
	}
	listeners := v.patches.Listeners(p.Type == Router, inbound, p.addPeerMetadata(p.interceptionMode().listeners(v)))
	v.reportSkippedPatches(xds.ListenerType, matchAll, nil)
	return listenerResources(listeners)
}

// NamedListeners returns the listeners of the proxy whose names are in names. It skips unknown names.
func NamedListeners(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	if at, ok := v.parseListenerNames(names); ok {
		return listenerResources(p.addPeerMetadata(v.buildOutboundListeners(func(gate netip.AddrPort) bool { return at[gate] })))
	}
	all, err := Listeners(s, p)
	return slices.DeleteFunc(all, func(r *xds.Resource) bool { return !slices.Contains(names, r.Name) }), err
}

func listenerResources(listeners []*listenerv3.Listener) ([]*xds.Resource, error) {
	out := make([]*xds.Resource, 0, len(listeners))
	for _, l := range listeners {
		r, err := xds.NewResource(l.Name, l)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Routes returns the route configurations whose names are in names. It skips unknown names. If names is empty, it
// returns all route configurations to which the proxy's listeners refer.
func Routes(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v, c := newView(s, p), p.interceptionMode()
	made := matchNames(names)
	if len(names) == 0 {
		names, made = c.routeNames(v), matchAll
	}
	var out []*xds.Resource
	for _, name := range names {
		r, err := c.routeConfiguration(v, name)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	v.reportSkippedPatches(xds.RouteType, made, out)
	return out, nil
}
