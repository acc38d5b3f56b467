package controlplane

import (
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// DatagramPort is a UDP port of a service at one of its addresses. Proxies do not forward UDP. The program that creates
// the workloads' network, for example the local mesh, forwards the datagrams to the endpoints instead.
type DatagramPort struct {
	Address   netip.AddrPort
	Endpoints []netip.AddrPort // sorted; empty if the service has no endpoints
}

// Datagrams returns the UDP ports of the services with addresses that are visible in a namespace, in a stable order.
// known is false before the first snapshot.
func (s *Server) Datagrams(namespace string) (ports []DatagramPort, known bool) {
	latest := s.pushLoop.snapshot()
	if latest == nil {
		return nil, false
	}
	for _, svc := range latest.Registry.Services {
		if len(svc.Addresses) == 0 || !svc.VisibleTo(namespace) {
			continue
		}
		for _, p := range svc.Ports {
			if p.Protocol != registry.UDP {
				continue
			}
			endpoints := datagramEndpoints(latest.Registry.Datagrams(svc), p.Number)
			for _, at := range svc.Addresses {
				ports = append(ports, DatagramPort{netip.AddrPortFrom(at, uint16(p.Number)), sameFamily(endpoints, at)})
			}
		}
	}
	return ports, true
}

func datagramEndpoints(all []registry.Endpoint, port uint32) []netip.AddrPort {
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
