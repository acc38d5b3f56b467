package translate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// What services have a part in that come, go or change is named here for those proxies of which a mesh has most: sidecars
// whose workloads' connections are captured, which no Sidecar narrows and no EnvoyFilter patches. For all others it is
// everything of a type.

// whole says whether the proxy is one of them: it is given all that it may see, as it is.
func (v view) whole() bool { return v.p.captured() && v.scope.Sidecar == nil && v.patches == nil }

// plain says whether the proxy is one of them without listeners for upstreams of its own, and the service, of which there may be several of one name, neither has a
// pattern for its name nor leads wherever a request says.
func (a *affected) plain(namesakes []*registry.Service) bool {
	return a.whole() && len(a.p.Upstreams) == 0 &&
		!slices.ContainsFunc(namesakes, func(svc *registry.Service) bool { return strings.HasPrefix(svc.Hostname, "*") || svc.ByName })
}

// namesakes are a service and all others of its hostname, which it may have stood behind, or put behind it.
func (a *affected) namesakes(svc *registry.Service) []*registry.Service {
	return append(slices.Clone(a.s.Registry.ByHostname(svc.Hostname)), svc)
}

// routesOf adds the route configurations and virtual hosts that a service has a part in.
func (a *affected) routesOf(svc *registry.Service) {
	namesakes := a.namesakes(svc)
	if !a.p.HostsApart || !a.plain(namesakes) || slices.ContainsFunc(namesakes, a.s.Contested) {
		a.all(xds.RouteType, xds.VirtualHostType)
		return
	}
	for port := range a.ports(svc) {
		a.touches.Add(xds.RouteType, strconv.FormatUint(uint64(port), 10), upstreamRoute(svc, port))
		a.hostApart(svc.Hostname, port)
		a.hostApart(instancesOf(svc.Hostname), port)
	}
	a.hostApart(svc.Hostname, 80) // of rules, for as long as it is no service
	for _, pattern := range a.s.Patterns(svc.Hostname) {
		a.hostApart(pattern, 80)
	}
	for _, v := range a.s.LeadingTo(svc) {
		a.routes(v.Resource, v.Spec)
	}
}

// listenersOf adds the listeners that a service has a part in.
func (a *affected) listenersOf(svc *registry.Service) {
	namesakes := a.namesakes(svc)
	if !a.plain(namesakes) || a.s.KeysByProxy || len(a.s.Mesh.GetExtensionProviders()) > 0 || a.bytesLeadTo(svc) {
		a.all(xds.ListenerType)
		return
	}
	for _, one := range namesakes {
		a.gatesOf(one)
	}
}

func (a *affected) gatesOf(svc *registry.Service) {
	for _, port := range svc.Ports {
		switch {
		case port.Protocol == registry.UDP:
		case !port.Protocol.IsHTTP():
			for _, at := range gateAddresses(svc, uint16(port.Number)) {
				a.touches.Add(xds.ListenerType, listenerName(at))
			}
			if len(svc.Ranges) > 0 {
				a.touches.Add(xds.ListenerType, listenerName(wildcard(port.Number)))
			}
		case !a.opened(svc, port.Number):
			a.touches.Add(xds.ListenerType, listenerName(wildcard(port.Number)))
		}
	}
}

// bytesLeadTo says whether rules may lead connections of bytes to a service: what they become is in the listeners of others.
func (a *affected) bytesLeadTo(svc *registry.Service) bool {
	for _, v := range a.s.LeadingTo(svc) {
		if len(v.Spec.GetTcp())+len(v.Spec.GetTls()) > 0 {
			return true
		}
	}
	return false
}

// opened says whether the gate that services of HTTP share at a port is, and was, another one's before it is this one's.
func (a *affected) opened(svc *registry.Service, port uint32) bool {
	first := a.firstAt(port)
	if first == nil || first.Hostname >= svc.Hostname {
		return false
	}
	if a.changed == nil {
		a.changed = make(map[string]struct{}, len(a.change.Services))
		for _, c := range a.change.Services {
			a.changed[c.Hostname] = struct{}{}
		}
	}
	_, changed := a.changed[first.Hostname]
	return !changed
}

// firstKey is where the first services of HTTP at each port are in the memory of a scope.
type firstKey struct{}

func (v view) firstAt(port uint32) *registry.Service {
	return v.scope.Memo(firstKey{}, func() any { return firstHTTP(v.scope) }).(map[uint32]*registry.Service)[port]
}

func firstHTTP(scope *snapshot.Scope) map[uint32]*registry.Service {
	first := map[uint32]*registry.Service{}
	for _, svc := range scope.Services {
		for _, port := range svc.Ports {
			if first[port.Number] == nil && port.Protocol.IsHTTP() {
				first[port.Number] = svc
			}
		}
	}
	return first
}

// gatesNamed are the places of listeners that are named, if they can be made without the others.
func (v view) gatesNamed(names []string) (map[netip.AddrPort]bool, bool) {
	if !v.whole() {
		return nil, false
	}
	at := make(map[netip.AddrPort]bool, len(names))
	for _, name := range names {
		address, port, _ := strings.Cut(name, "_")
		addr, err := netip.ParseAddr(address)
		number, notNumber := strconv.ParseUint(port, 10, 16)
		if err != nil || notNumber != nil {
			return nil, false
		}
		at[netip.AddrPortFrom(addr, uint16(number))] = true
	}
	return at, true
}
