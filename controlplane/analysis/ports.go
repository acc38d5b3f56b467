package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// addressField returns the path of the field that contains the address of a service.
func addressField(r *config.Resource, address netip.Addr) string {
	switch spec := r.Spec.(type) {
	case *networking.ServiceEntry:
		for i, text := range spec.GetAddresses() {
			if a, err := netip.ParseAddr(text); err == nil && a == address {
				return fmt.Sprintf("spec.addresses[%d]", i)
			}
		}
	case *config.ServiceSpec:
		for i, text := range spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil && a == address {
				return fmt.Sprintf("spec.clusterIPs[%d]", i)
			}
		}
		return "spec.clusterIP"
	}
	return "spec"
}

// checkPortProtocols reports services that select the same workloads but declare different protocols for one port. It
// ignores differences between protocols that proxies handle identically.
func (c *snapshotCheck) checkPortProtocols() {
	type listed struct {
		namespace, labels, name string
		number                  uint32
	}
	type by struct {
		service *registry.Service
		port    registry.Port
	}
	first := map[listed]by{}
	for _, namespace := range slices.Sorted(maps.Keys(c.selecting)) {
		for _, svc := range c.selecting[namespace] { // sorted by hostname
			for _, p := range svc.Ports {
				if p.Protocol == registry.UDP || p.Protocol == registry.Undeclared {
					continue
				}
				at := listed{namespace: namespace, labels: config.FormatLabels(svc.Selector), name: p.TargetPortName}
				if at.name == "" {
					at.number = cmp.Or(p.TargetPort, p.Number)
				}
				before, ok := first[at]
				if !ok {
					first[at] = by{svc, p}
					continue
				}
				if r := c.s.Registry.Document(svc); r != nil && protocolGroup(before.port.Protocol) != protocolGroup(p.Protocol) {
					c.reportWarning(config.PortProtocols, r, portField(r, p.Number), string(p.Protocol),
						fmt.Sprintf("port %[2]d of %[1]s leads to the same port of the same workloads and has the protocol %[3]s, which proxies use for both services", before.service.Hostname, before.port.Number, before.port.Protocol),
						"set the same protocol for both, by appProtocol or the port's name, or use different target ports")
				}
			}
		}
	}
}

// protocolGroup returns the group of protocols that proxies handle identically.
func protocolGroup(p registry.Protocol) string {
	switch {
	case p.IsHTTP():
		return "requests"
	case p == registry.TLS || p == registry.HTTPS:
		return "TLS"
	}
	return "bytes"
}

// portField returns the path of the field that contains the port number.
func portField(r *config.Resource, number uint32) string {
	at := -1
	switch spec := r.Spec.(type) {
	case *networking.ServiceEntry:
		at = slices.IndexFunc(spec.GetPorts(), func(p *networking.ServicePort) bool { return p.GetNumber() == number })
	case *config.ServiceSpec:
		at = slices.IndexFunc(spec.Ports, func(p config.ServicePort) bool { return p.Port == number && p.Protocol != "UDP" })
	}
	if at < 0 {
		return "spec.ports"
	}
	return fmt.Sprintf("spec.ports[%d]", at)
}
