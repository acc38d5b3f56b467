package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// tlsModeLabel says on a workload whether a sidecar answers there: "istio" that it does, "disabled" that it does not.
const tlsModeLabel = "security.istio.io/tlsMode"

// served is where a service is served. Immutable.
type served struct {
	endpoints []Endpoint
	// datagrams are the places of ports of UDP: no proxy's, and often of the same number as a TCP port.
	datagrams []Endpoint
	problems  []config.Problem
}

// newServed joins the endpoints that the service's document lists with those of the workloads it selects. Of before
// (nil for a new service) each list is used again when it is the same.
func newServed(s *source, i int, workloads *crowd, before *served) *served {
	service := s.services[i]
	out := &served{endpoints: s.listed[i]}
	if len(service.Selector) > 0 && service.Resolution != Passthrough {
		out = selectEndpoints(s, service, workloads.selected(service.Selector))
	}
	if before != nil && slices.EqualFunc(before.endpoints, out.endpoints, Endpoint.equal) {
		out.endpoints = before.endpoints
	}
	if before != nil && slices.EqualFunc(before.datagrams, out.datagrams, Endpoint.equal) {
		out.datagrams = before.datagrams
	}
	return out
}

func selectEndpoints(s *source, service *Service, workloads []*workload) *served {
	out := &served{}
	if n := len(service.Ports) * len(workloads); n > 0 {
		out.endpoints = make([]Endpoint, 0, n)
	}
	usable := out.usable(service, workloads)
	for i, port := range service.Ports {
		if port.Protocol == UDP {
			out.datagrams = append(out.datagrams, selectDatagrams(port, usable)...)
			continue
		}
		var lacking []string
		for _, w := range usable {
			number, ok := port.on(w.entry.GetPorts())
			if !ok {
				lacking = append(lacking, w.resource.Name)
				continue
			}
			e := newEndpoint(w.entry, w.labels, w.resource.Namespace, port.Number, number)
			e.Workload = w.resource.Name
			out.endpoints = append(out.endpoints, e)
		}
		if len(lacking) > 0 {
			out.problems = append(out.problems, unknownTargetPort(s.resource, i, port, lacking, usable))
		}
	}
	return out
}

func selectDatagrams(port Port, workloads []*workload) []Endpoint {
	var out []Endpoint
	for _, w := range workloads {
		if number, ok := port.on(w.entry.GetPorts()); ok {
			e := newEndpoint(w.entry, w.labels, w.resource.Namespace, port.Number, number)
			e.Workload = w.resource.Name
			out = append(out, e)
		}
	}
	return out
}

// usable leaves out the workloads whose address Envoy could not use: with static resolution it takes no names.
func (out *served) usable(service *Service, workloads []*workload) []*workload {
	if service.Resolution != Static {
		return workloads
	}
	var usable []*workload
	for i, w := range workloads {
		address := w.entry.GetAddress()
		switch {
		case isAddress(address) || strings.HasPrefix(address, "unix://"):
			if usable != nil {
				usable = append(usable, w)
			}
			continue
		case usable == nil:
			usable = append(make([]*workload, 0, len(workloads)), workloads[:i]...)
		}
		out.problems = append(out.problems, problemAt(w.resource, "spec.address", address,
			fmt.Sprintf("not an IP address, so that %s does not use this workload", service.Hostname),
			"give its address, or select it by a ServiceEntry with resolution: DNS"))
	}
	if usable == nil {
		return workloads
	}
	return usable
}

func unknownTargetPort(r *config.Resource, i int, port Port, lacking []string, among []*workload) config.Problem {
	names := map[string]bool{}
	for _, w := range among {
		for name := range w.entry.GetPorts() {
			names[name] = true
		}
	}
	message := fmt.Sprintf("no port of this name on workload %s", lacking[0])
	if len(lacking) > 1 {
		message += fmt.Sprintf(" and %d more", len(lacking)-1)
	}
	remedy := "name the port on the workload, or use a number"
	if len(names) > 0 {
		remedy = "its workloads name " + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + "; use one of these, or a number"
	}
	return problemAt(r, fmt.Sprintf("spec.ports[%d].targetPort", i), port.TargetPortName, message, remedy)
}

// on is the port's number on a workload or listed endpoint that names its ports so. A name that it does not have is
// not found.
//
// By Istio's rule an endpoint's own number for the service port's name goes before targetPort. But where the endpoint
// lists the target port's very number, that one is meant, as in Kubernetes.
func (p Port) on(ports map[string]uint32) (number uint32, ok bool) {
	if p.TargetPortName != "" {
		number, ok = ports[p.TargetPortName]
		return number, ok
	}
	own, ok := ports[p.Name]
	if !ok || own == p.TargetPort {
		return p.TargetPort, true
	}
	for _, number := range ports {
		if number == p.TargetPort {
			return p.TargetPort, true
		}
	}
	return own, true
}

func newEndpoint(we *networking.WorkloadEntry, labels map[string]string, namespace string, servicePort, port uint32) Endpoint {
	if strings.HasPrefix(we.GetAddress(), "unix://") {
		port = 0
	}
	return Endpoint{
		Address: we.GetAddress(), Port: port, ServicePort: servicePort,
		Labels: labels, Namespace: namespace,
		ServiceAccount: we.GetServiceAccount(), Network: we.GetNetwork(), Locality: localityOf(we.GetLocality(), labels), Weight: we.GetWeight(),
		MTLS: HasSidecar(labels, we.GetServiceAccount()),
	}
}

// HasSidecar follows Istio: the label tells; without it, a workload that has an identity has a sidecar.
func HasSidecar(labels map[string]string, serviceAccount string) bool {
	if mode, ok := labels[tlsModeLabel]; ok {
		return mode == "istio"
	}
	return serviceAccount != ""
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Address == o.Address && e.Port == o.Port && e.ServicePort == o.ServicePort &&
		e.Namespace == o.Namespace && e.Workload == o.Workload && e.ServiceAccount == o.ServiceAccount &&
		e.Network == o.Network && e.Locality == o.Locality && e.Weight == o.Weight && e.MTLS == o.MTLS &&
		maps.Equal(e.Labels, o.Labels)
}

// localityLabels say where a workload is that does not otherwise; label values cannot have slashes.
var localityLabels = []string{"topology.istio.io/locality", "istio-locality"}

func localityOf(written string, labels map[string]string) string {
	if written != "" {
		return written
	}
	for _, name := range localityLabels {
		if value, ok := labels[name]; ok {
			if !strings.Contains(value, "/") {
				value = strings.ReplaceAll(value, ".", "/")
			}
			return value
		}
	}
	return ""
}
