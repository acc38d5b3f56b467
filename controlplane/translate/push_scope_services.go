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

// For the most common proxies, the resources that a changed service affects are added by name. These proxies are
// sidecars with redirection to which no Sidecar resource and no EnvoyFilter applies. For other proxies, all resources
// of a type are added.

// isUnrestricted reports whether the proxy is a sidecar with redirection to which no Sidecar resource and no
// EnvoyFilter applies.
func (v proxyView) isUnrestricted() bool {
	return v.p.isCaptured() && v.scope.Sidecar == nil && v.patches == nil
}

// canAddByName reports whether resources can be added by name. The proxy must be unrestricted and have no upstream
// listeners. The hostname must not be a wildcard, and none of its services may be one that Envoy resolves by name
// (Service.ByName).
func (a *scopeBuilder) canAddByName(namesakes []*registry.Service) bool {
	return a.isUnrestricted() && len(a.p.Upstreams) == 0 &&
		!slices.ContainsFunc(namesakes, func(svc *registry.Service) bool { return strings.HasPrefix(svc.Hostname, "*") || svc.ByName })
}

// namesakes returns svc and all other services with its hostname. One of these services takes precedence over the
// others.
func (a *scopeBuilder) namesakes(svc *registry.Service) []*registry.Service {
	return append(slices.Clone(a.s.Registry.ByHostname(svc.Hostname)), svc)
}

// addServiceRoutes adds the route configurations and virtual hosts that a service affects.
func (a *scopeBuilder) addServiceRoutes(svc *registry.Service) {
	namesakes := a.namesakes(svc)
	if !a.p.UseVHDS || !a.canAddByName(namesakes) || slices.ContainsFunc(namesakes, a.s.HasNameConflict) {
		a.addAll(xds.RouteType, xds.VirtualHostType)
		return
	}
	for port := range a.namesakePorts(svc) {
		a.affected.Add(xds.RouteType, strconv.FormatUint(uint64(port), 10), upstreamRoute(svc, port))
		a.addVirtualHost(svc.Hostname, port)
		a.addVirtualHost(instanceHost(svc.Hostname), port)
	}
	// This virtual host is used while the host is not a service. VirtualServices define it.
	a.addVirtualHost(svc.Hostname, 80)
	for _, pattern := range a.s.HostPatterns(svc.Hostname) {
		a.addVirtualHost(pattern, 80)
	}
	for _, v := range a.s.RulesRoutingTo(svc) {
		a.addRoutes(v.Resource, v.Spec)
	}
}

// addServiceListeners adds the listeners that a service affects.
func (a *scopeBuilder) addServiceListeners(svc *registry.Service) {
	namesakes := a.namesakes(svc)
	if !a.canAddByName(namesakes) || a.s.KeysByProxy || len(a.s.Mesh.GetExtensionProviders()) > 0 || a.isTCPRouteTarget(svc) {
		a.addAll(xds.ListenerType)
		return
	}
	for _, one := range namesakes {
		a.addPortListeners(one)
	}
}

func (a *scopeBuilder) addPortListeners(svc *registry.Service) {
	for _, port := range svc.Ports {
		switch {
		case port.Protocol == registry.UDP:
		case !port.Protocol.IsHTTP():
			for _, at := range listenAddresses(svc, uint16(port.Number)) {
				a.affected.Add(xds.ListenerType, listenerName(at))
			}
			if len(svc.Ranges) > 0 {
				a.affected.Add(xds.ListenerType, listenerName(wildcard(port.Number)))
			}
		case !a.isListenerUnchanged(svc, port.Number):
			a.affected.Add(xds.ListenerType, listenerName(wildcard(port.Number)))
		}
	}
}

// isTCPRouteTarget reports whether TCP or TLS rules may route to a service. The service then affects the listeners of
// other services.
func (a *scopeBuilder) isTCPRouteTarget(svc *registry.Service) bool {
	for _, v := range a.s.RulesRoutingTo(svc) {
		if len(v.Spec.GetTcp())+len(v.Spec.GetTls()) > 0 {
			return true
		}
	}
	return false
}

// isListenerUnchanged reports whether a change of svc does not affect the shared HTTP listener of the port. The
// listener depends only on the port's first HTTP service by hostname.
func (a *scopeBuilder) isListenerUnchanged(svc *registry.Service, port uint32) bool {
	first := a.firstHTTPService(port)
	if first == nil || first.Hostname >= svc.Hostname {
		return false
	}
	if a.changedHosts == nil {
		a.changedHosts = make(map[string]struct{}, len(a.change.Services))
		for _, c := range a.change.Services {
			a.changedHosts[c.Hostname] = struct{}{}
		}
	}
	_, changed := a.changedHosts[first.Hostname]
	return !changed
}

// firstHTTPKey is the key, in a scope's cache, of the index of the first HTTP service of each port.
type firstHTTPKey struct{}

func (v proxyView) firstHTTPService(port uint32) *registry.Service {
	return v.scope.Memo(firstHTTPKey{}, func() any { return indexFirstHTTP(v.scope) }).(map[uint32]*registry.Service)[port]
}

func indexFirstHTTP(scope *snapshot.Scope) map[uint32]*registry.Service {
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

// parseListenerNames returns the addresses in the listener names. It returns false if the listeners cannot be built
// separately from the other listeners, or if a name contains no address.
func (v proxyView) parseListenerNames(names []string) (map[netip.AddrPort]bool, bool) {
	if !v.isUnrestricted() {
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
