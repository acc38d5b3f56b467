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
	// HTTP requests contain the host, so proxies resolve it (see Service.ByName). For other connections, the proxy
	// knows only the original destination.
	networking.ServiceEntry_DYNAMIC_DNS: Passthrough,
}

// readServiceEntry creates one service for each host of a ServiceEntry.
func (s *source) readServiceEntry() {
	entry, ok := s.resource.Spec.(*networking.ServiceEntry)
	if !ok {
		return
	}
	ports := s.entryPorts(entry)
	addresses, ranges := entryAddresses(entry)
	seen := map[string]bool{}
	for _, host := range entry.GetHosts() {
		host = strings.TrimSuffix(host, ".")
		if seen[host] {
			continue
		}
		seen[host] = true
		service := &Service{
			Hostname: host, Name: s.resource.Name, Namespace: s.resource.Namespace,
			Addresses: addresses, Ranges: ranges, Ports: ports,
			Resolution:      resolutions[entry.GetResolution()],
			ByName:          entry.GetResolution() == networking.ServiceEntry_DYNAMIC_DNS,
			External:        entry.GetLocation() == networking.ServiceEntry_MESH_EXTERNAL,
			Selector:        nilIfEmpty(entry.GetWorkloadSelector().GetLabels()),
			ExportTo:        entry.GetExportTo(),
			SubjectAltNames: entry.GetSubjectAltNames(),
			Source:          s.resource.Key,
			Distribution:    distributionOf("", s.resource.Annotations, s.inherited),
		}
		s.services = append(s.services, service)
		s.listedEndpoints = append(s.listedEndpoints, s.entryEndpoints(entry, service))
	}
	s.reportRefusedEndpoints(entry, ports)
}

// reportRefusedEndpoints records findings about refused endpoints of a ServiceEntry. Hosts that proxies resolve count
// as endpoints.
func (s *source) reportRefusedEndpoints(entry *networking.ServiceEntry, ports []Port) {
	for i, we := range entry.GetEndpoints() {
		var numbers []uint32
		for _, port := range ports {
			if number, ok := port.numberOn(we.GetPorts()); ok {
				numbers = append(numbers, number)
			}
		}
		s.reportRefused(fmt.Sprintf("spec.endpoints[%d].address", i), we.GetAddress(), numbers...)
	}
	if how := resolutions[entry.GetResolution()]; how == Static || how != Passthrough && (len(entry.GetEndpoints()) > 0 || entry.GetWorkloadSelector() != nil) {
		return
	}
	var numbers []uint32
	for _, port := range ports {
		numbers = append(numbers, port.TargetPort)
	}
	for i, host := range entry.GetHosts() {
		s.reportRefused(fmt.Sprintf("spec.hosts[%d]", i), host, numbers...)
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

// entryAddresses separates single addresses from networks.
func entryAddresses(entry *networking.ServiceEntry) (single []netip.Addr, ranges []netip.Prefix) {
	for _, text := range entry.GetAddresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			single = append(single, addr)
			continue
		}
		switch prefix, err := netip.ParsePrefix(text); {
		case err != nil: // not parsed: validation has already refused the document
		case prefix.IsSingleIP():
			single = append(single, prefix.Addr())
		default:
			ranges = append(ranges, prefix.Masked())
		}
	}
	return single, ranges
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
			number, ok := port.numberOn(we.GetPorts())
			if !ok {
				continue
			}
			out = s.opts.appendAllowed(out, newEndpoint(we, we.GetLabels(), service.Namespace, port.Number, number))
		}
	}
	return out
}
