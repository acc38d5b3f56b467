package registry

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// exportToAnnotation is the annotation that limits the visibility of a Kubernetes Service, because a Service has no
// exportTo field.
const exportToAnnotation = "networking.istio.io/exportTo"

// source contains the services that one document defines, without the workloads that they select. It is immutable.
type source struct {
	resource *config.Resource
	opts     Options
	services []*Service
	// listedEndpoints contains, for each service of the document, the endpoints that the document lists.
	listedEndpoints [][]Endpoint
	problems        []config.Problem
	// inherited is the traffic distribution of the document's namespace.
	inherited string
}

// newSource converts a document. inherited is the traffic distribution annotation of its namespace. It shares unchanged
// services with prev, which may be nil.
func newSource(r *config.Resource, opts Options, inherited string, prev *source) *source {
	s := &source{resource: r, opts: opts, inherited: inherited}
	if r.Kind == config.Service {
		s.readService(opts)
	} else {
		s.readServiceEntry()
		for _, service := range s.services {
			opts.allocateVirtualAddress(service)
		}
	}
	if prev != nil {
		s.reuse(prev)
	}
	return s
}

func (s *source) reuse(prev *source) {
	for i, service := range s.services {
		for _, old := range prev.services {
			if old.Hostname != service.Hostname {
				continue
			}
			service.AliasOf, service.AliasServices = old.AliasOf, old.AliasServices // nameAliases sets these fields
			if reflect.DeepEqual(old, service) {
				s.services[i] = old
			}
		}
	}
}

func (s *source) warn(field, value, message, remedy string) {
	s.problems = append(s.problems, problemAt(s.resource, field, value, message, remedy))
}

// reportRefused records a finding about an endpoint of the document, unless the endpoint is allowed.
func (s *source) reportRefused(field, address string, ports ...uint32) {
	if p, ok := s.opts.checkEndpoint(s.resource, field, address, ports...); ok {
		s.problems = append(s.problems, p)
	}
}

// withCode replaces the code of a problem.
func withCode(code config.Code, p config.Problem) config.Problem {
	p.Code = code
	return p
}

func problemAt(r *config.Resource, field, value, message, remedy string) config.Problem {
	return config.Problem{
		Code: config.Questionable, Severity: config.Warning, Key: r.Key, At: r.PositionOf(field), Field: field, Value: value, Message: message, Remedy: remedy,
	}
}

// noClusterIP is the clusterIP of a headless Service. Its clients connect to the addresses of its workloads.
const noClusterIP = "None"

// readService reads a Kubernetes Service. A headless Service has no address. A Service without a clusterIP may receive
// a virtual address.
func (s *source) readService(opts Options) {
	spec, ok := s.resource.Spec.(*config.ServiceSpec)
	if !ok {
		return
	}
	name, namespace := s.resource.Name, s.resource.Namespace
	service := &Service{
		Hostname:   opts.ServiceHostname(name, namespace),
		Name:       name,
		Namespace:  namespace,
		Aliases:    []string{name + "." + namespace, name + "." + namespace + ".svc"},
		Kubernetes: true,
		ByInstance: spec.ClusterIP == noClusterIP,
		NodeLocal:  spec.NodeLocal,
		Sessions:   hasSessions(s.resource.Labels),
		Selector:   nilIfEmpty(spec.Selector),
		ExportTo:   splitList(s.resource.Annotations[exportToAnnotation]),
		Source:     s.resource.Key,

		Distribution: distributionOf(spec.TrafficDistribution, s.resource.Annotations, s.inherited),
	}
	for _, text := range append([]string{spec.ClusterIP}, spec.ClusterIPs...) {
		if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(service.Addresses, ip) {
			service.Addresses = append(service.Addresses, ip)
		}
	}
	for i, p := range spec.Ports {
		s.addServicePort(service, p, i)
	}
	s.services = []*Service{service}
	s.listedEndpoints = [][]Endpoint{nil}
	if spec.ClusterIP != noClusterIP {
		defer opts.allocateVirtualAddress(service) // runs after Resolution is set
	}
	if spec.Type == "ExternalName" {
		s.readExternalName(service, spec)
	}
}

func (s *source) readExternalName(service *Service, spec *config.ServiceSpec) {
	service.Resolution = DNS
	service.External = true
	service.Selector = nil
	service.ExternalName = strings.TrimSuffix(spec.ExternalName, ".")
	for _, p := range service.Ports {
		s.listedEndpoints[0] = s.opts.appendAllowed(s.listedEndpoints[0], Endpoint{
			Address: service.ExternalName, Port: p.Number, ServicePort: p.Number, Namespace: service.Namespace,
		})
	}
}

func (s *source) addServicePort(service *Service, p config.ServicePort, i int) {
	field := fmt.Sprintf("spec.ports[%d]", i)
	port := Port{Name: p.Name, Number: p.Port, TargetPort: p.TargetPort, TargetPortName: p.TargetPortName}
	if port.TargetPort == 0 && port.TargetPortName == "" {
		port.TargetPort = p.Port
	}
	switch p.Protocol {
	case "UDP":
		port.Protocol = UDP
	case "SCTP":
		s.warn(field+".protocol", p.Protocol, "proxies do not route SCTP, so the control plane ignores this port", "use TCP or UDP, or call the workload by its address")
		return
	default:
		port.Protocol = serviceProtocol(p.AppProtocol, p.Name, p.Port)
	}
	service.Ports = append(service.Ports, port)
}

// nilIfEmpty returns nil for an empty selector. An empty selector of a Kubernetes Service selects nothing.
func nilIfEmpty(selector map[string]string) map[string]string {
	if len(selector) == 0 {
		return nil
	}
	return selector
}

func splitList(list string) []string {
	var out []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
