package registry

import (
	"fmt"
	"net/netip"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

var resolutions = map[networking.ServiceEntry_Resolution]Resolution{
	networking.ServiceEntry_NONE:            Passthrough,
	networking.ServiceEntry_STATIC:          Static,
	networking.ServiceEntry_DNS:             DNS,
	networking.ServiceEntry_DNS_ROUND_ROBIN: DNSRoundRobin,
	// Requests name their host (see Service.ByName); of a connection nothing but the caller's choice is known.
	networking.ServiceEntry_DYNAMIC_DNS: Passthrough,
}

// readServiceEntry makes one service of each host.
func (s *source) readServiceEntry() {
	entry, ok := s.resource.Spec.(*networking.ServiceEntry)
	if !ok {
		return
	}
	ports := s.entryPorts(entry)
	addresses := s.entryAddresses(entry)
	seen := map[string]bool{}
	for _, host := range entry.GetHosts() {
		host = strings.TrimSuffix(host, ".")
		if seen[host] {
			continue
		}
		seen[host] = true
		service := &Service{
			Hostname: host, Name: s.resource.Name, Namespace: s.resource.Namespace,
			Addresses: addresses, Ports: ports,
			Resolution:      resolutions[entry.GetResolution()],
			ByName:          entry.GetResolution() == networking.ServiceEntry_DYNAMIC_DNS,
			External:        entry.GetLocation() == networking.ServiceEntry_MESH_EXTERNAL,
			Selector:        orNil(entry.GetWorkloadSelector().GetLabels()),
			ExportTo:        entry.GetExportTo(),
			SubjectAltNames: entry.GetSubjectAltNames(),
			Source:          s.resource.Key,
		}
		s.services = append(s.services, service)
		s.listed = append(s.listed, s.entryEndpoints(entry, service))
	}
}

func (s *source) entryPorts(entry *networking.ServiceEntry) []Port {
	var ports []Port
	for _, p := range entry.GetPorts() {
		port := Port{Name: p.GetName(), Number: p.GetNumber(), TargetPort: p.GetTargetPort()}
		if port.TargetPort == 0 {
			port.TargetPort = port.Number
		}
		port.Protocol = entryProtocol(p.GetProtocol(), p.GetName(), p.GetNumber())
		ports = append(ports, port)
	}
	return ports
}

// entryAddresses are the addresses that stand for one machine: a range of more has no place in a service of the mesh.
func (s *source) entryAddresses(entry *networking.ServiceEntry) []netip.Addr {
	var out []netip.Addr
	for i, text := range entry.GetAddresses() {
		addr, err := netip.ParseAddr(text)
		if prefix, perr := netip.ParsePrefix(text); perr == nil && prefix.IsSingleIP() {
			addr, err = prefix.Addr(), nil
		}
		if err != nil {
			s.warn(fmt.Sprintf("spec.addresses[%d]", i), text, "a range of addresses has no effect in this version", "list single addresses")
			continue
		}
		out = append(out, addr)
	}
	return out
}

func (s *source) entryEndpoints(entry *networking.ServiceEntry, service *Service) []Endpoint {
	if service.Resolution == Passthrough {
		return nil
	}
	listed := entry.GetEndpoints()
	if len(listed) == 0 && service.Selector == nil && service.Resolution != Static && !strings.HasPrefix(service.Hostname, "*") {
		listed = []*networking.WorkloadEntry{{Address: service.Hostname}}
	}
	var out []Endpoint
	for _, port := range service.Ports {
		if port.Protocol == UDP {
			continue
		}
		for _, we := range listed {
			number, ok := port.on(we.GetPorts())
			if !ok {
				continue
			}
			out = append(out, newEndpoint(we, we.GetLabels(), service.Namespace, port.Number, number))
		}
	}
	return out
}
