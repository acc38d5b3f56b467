package controlplane

import (
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// ForwardedPort is a service port for which proxies do not forward: a UDP port, or a TCP port for connections that are
// not redirected. The program that creates the workloads' network, for example the local mesh, forwards packets for
// Address to Endpoints instead.
type ForwardedPort struct {
	TCP       bool
	Address   netip.AddrPort
	Endpoints []netip.AddrPort // sorted; empty if the service has no endpoints
}

// Datagrams returns the UDP ports, in a stable order, of all services that have an address and are visible in
// namespace. known is false before the first snapshot.
func (s *Server) Datagrams(namespace string) (ports []ForwardedPort, known bool) {
	return s.forwardedPorts(namespace, false)
}

// Streams is like Datagrams, but returns TCP ports.
func (s *Server) Streams(namespace string) (ports []ForwardedPort, known bool) {
	return s.forwardedPorts(namespace, true)
}

func (s *Server) forwardedPorts(namespace string, tcp bool) (ports []ForwardedPort, known bool) {
	latest := s.pushLoop.snapshot()
	if latest == nil {
		return nil, false
	}
	endpointsOf := latest.Registry.Datagrams
	if tcp {
		endpointsOf = latest.Registry.Endpoints
	}
	for _, svc := range latest.Registry.Services {
		if len(svc.Addresses) == 0 || !svc.VisibleTo(namespace) {
			continue
		}
		for _, p := range svc.Ports {
			if tcp == (p.Protocol == registry.UDP) {
				continue
			}
			endpoints := portEndpoints(endpointsOf(svc), p.Number)
			for _, at := range svc.Addresses {
				ports = append(ports, ForwardedPort{tcp, netip.AddrPortFrom(at, uint16(p.Number)), sameFamily(endpoints, at)})
			}
		}
	}
	return ports, true
}

func portEndpoints(all []registry.Endpoint, port uint32) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range all {
		if addr, err := netip.ParseAddr(e.Address); err == nil && e.ServicePort == port {
			out = append(out, netip.AddrPortFrom(addr, uint16(e.Port)))
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

func sameFamily(endpoints []netip.AddrPort, at netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range endpoints {
		if e.Addr().Unmap().Is4() == at.Unmap().Is4() {
			out = append(out, e)
		}
	}
	return out
}
