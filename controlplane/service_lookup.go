package controlplane

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// ServiceAddresses contains the addresses of a service, for clients without a proxy.
type ServiceAddresses struct {
	// Host is the full name of the service.
	Host string
	// Addresses are the addresses of the service itself. The program that creates the workloads' network forwards them
	// to the instances (see ForwardedPort). They are empty for a headless service.
	Addresses []netip.Addr
	// Instances are the addresses of the instances, sorted.
	Instances []netip.Addr
	endpoints []registry.Endpoint
}

// Endpoints returns the addresses of a port of the service, sorted.
func (a ServiceAddresses) Endpoints(port uint16) []netip.AddrPort {
	return portEndpoints(a.endpoints, uint32(port))
}

// LookupService returns the addresses of the service that is called host in namespace, if it is visible there. host may
// also be the full name of an instance of a headless service. ok is false if there is no such service, or if its
// endpoints are host names: clients without a proxy resolve the host themselves.
func (s *Server) LookupService(namespace, host string) (found ServiceAddresses, ok bool) {
	latest := s.pushLoop.snapshot()
	if latest == nil {
		return ServiceAddresses{}, false
	}
	r := latest.Registry
	if svc := findStaticService(r, namespace, host); svc != nil {
		return newServiceAddresses(r, svc, nil), true
	}
	instance, host, _ := strings.Cut(host, ".")
	svc := findStaticService(r, namespace, host)
	if svc == nil || !svc.Headless() {
		return ServiceAddresses{}, false
	}
	found = newServiceAddresses(r, svc, func(e registry.Endpoint) bool { return e.Workload != instance })
	return found, len(found.Instances) > 0
}

// findStaticService returns the visible service that is called host and has IP addresses as endpoints, or nil. If
// several namespaces have a service with this name, it prefers the one of namespace.
func findStaticService(r *registry.Registry, namespace, host string) (found *registry.Service) {
	host = r.ResolveHostname(host, namespace)
	for _, svc := range r.ByHostname(r.Target(host)) {
		if svc.Resolution == registry.Static && svc.IsKnownAs(host, namespace) && (found == nil || svc.Namespace == namespace) {
			found = svc
		}
	}
	return found
}

// newServiceAddresses returns the addresses of a service. It leaves out the endpoints for which exclude, if not nil,
// returns true.
func newServiceAddresses(r *registry.Registry, svc *registry.Service, exclude func(registry.Endpoint) bool) ServiceAddresses {
	endpoints, datagrams := slices.Clone(r.Endpoints(svc)), slices.Clone(r.Datagrams(svc))
	if exclude != nil {
		endpoints, datagrams = slices.DeleteFunc(endpoints, exclude), slices.DeleteFunc(datagrams, exclude)
	}
	a := ServiceAddresses{Host: svc.Hostname, Addresses: svc.Addresses, endpoints: endpoints}
	for _, e := range slices.Concat(endpoints, datagrams) {
		if addr, err := netip.ParseAddr(e.Address); err == nil {
			a.Instances = append(a.Instances, addr)
		}
	}
	slices.SortFunc(a.Instances, netip.Addr.Compare)
	a.Instances = slices.Compact(a.Instances)
	return a
}
