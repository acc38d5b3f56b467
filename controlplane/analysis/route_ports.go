package analysis

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkImplicitPort reports a destination without a port whose service has several ports. Proxies then use the port at
// which the request arrived, which the service may not have.
func (c *snapshotCheck) checkImplicitPort(v *snapshot.VirtualService, d snapshot.DestinationRef, svc *registry.Service) {
	if len(svc.Ports) < 2 {
		return
	}
	for _, gateway := range v.Gateways {
		arriving := c.arrivalPorts(v, d, gateway)
		missing := slices.DeleteFunc(slices.Clone(arriving), func(number uint32) bool { _, ok := svc.Port(number); return ok })
		// Sidecars may use only some of the ports of a host.
		if len(missing) == 0 || gateway == snapshot.MeshGateway && len(missing) < len(arriving) {
			continue
		}
		c.reportWarning(config.PortRequired, v.Resource, d.Path(), d.Destination.GetHost(),
			fmt.Sprintf("the port is missing, and %s has no port %d, at which the traffic arrives: %s", svc.Hostname, missing[0], describeFailure(d)),
			"set port.number to one of "+phrase.List(portNumbers(svc)))
		return
	}
}

func portNumbers(svc *registry.Service) []string {
	var numbers []string
	for _, p := range svc.Ports {
		numbers = append(numbers, fmt.Sprint(p.Number))
	}
	return numbers
}

// arrivalPorts returns the ports at which traffic for a destination arrives. At a gateway, these are the ports of its
// servers. For sidecars, they are the ports of the rule's hosts, without unknown hosts.
func (c *snapshotCheck) arrivalPorts(v *snapshot.VirtualService, d snapshot.DestinationRef, gateway string) []uint32 {
	var ports []uint32
	if gateway == snapshot.MeshGateway {
		for _, host := range v.Hosts {
			for _, svc := range c.s.Registry.ByHostname(host) {
				for _, p := range svc.Ports {
					ports = append(ports, p.Number)
				}
			}
		}
		return ports
	}
	for _, g := range c.s.AllGateways() {
		if g.FullName() != gateway {
			continue
		}
		for _, server := range g.Spec.GetServers() {
			if servesRoute(server, d) && serverHasHost(server, v) {
				ports = append(ports, server.GetPort().GetNumber())
			}
		}
	}
	return ports
}

// servesRoute reports whether a server uses the kind of routes (HTTP, TCP or TLS) to which a destination belongs.
func servesRoute(server *networking.Server, d snapshot.DestinationRef) bool {
	switch {
	case config.RedirectsToHTTPS(server):
		return false
	case d.IsHTTP():
		return portUsage(server) == "HTTP" || strings.EqualFold(server.GetPort().GetProtocol(), "HTTPS") && server.GetTls().GetMode() != networking.ServerTLSSettings_PASSTHROUGH
	}
	return portUsage(server) != "HTTP"
}

func serverHasHost(server *networking.Server, v *snapshot.VirtualService) bool {
	return slices.ContainsFunc(server.GetHosts(), func(written string) bool {
		_, host, ok := strings.Cut(written, "/")
		if !ok {
			host = written
		}
		return slices.ContainsFunc(v.Hosts, func(own string) bool { return snapshot.HostsOverlap(host, own) })
	})
}
