package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// tlsModeLabel is the label that specifies whether a workload has a sidecar: "istio" means yes, "disabled" means no.
const tlsModeLabel = "security.istio.io/tlsMode"

// serviceEndpoints contains the endpoints of a service. It is immutable.
type serviceEndpoints struct {
	endpoints []Endpoint
	// datagrams are the endpoints of UDP ports. They are separate because proxies do not serve UDP, and a TCP port
	// often has the same number.
	datagrams []Endpoint
	problems  []config.Problem
}

// newServiceEndpoints returns the endpoints of service i of a source: the endpoints of the workloads that the service
// selects or, without a selector, the endpoints that its document lists. before contains the previous endpoints, or nil
// for a new service. Unchanged lists are shared with before.
func newServiceEndpoints(s *source, i int, workloads *workloadIndex, before *serviceEndpoints) *serviceEndpoints {
	service := s.services[i]
	out := &serviceEndpoints{endpoints: s.listedEndpoints[i]}
	if len(service.Selector) > 0 && service.Resolution != Passthrough {
		out = selectEndpoints(s, service, workloads.selectWorkloads(service.Selector))
	}
	if before != nil && slices.EqualFunc(before.endpoints, out.endpoints, Endpoint.equal) {
		out.endpoints = before.endpoints
	}
	if before != nil && slices.EqualFunc(before.datagrams, out.datagrams, Endpoint.equal) {
		out.datagrams = before.datagrams
	}
	return out
}

func selectEndpoints(s *source, service *Service, workloads []*workload) *serviceEndpoints {
	out := &serviceEndpoints{}
	if n := len(service.Ports) * len(workloads); n > 0 {
		out.endpoints = make([]Endpoint, 0, n)
	}
	usable := out.filterUsable(service, workloads)
	for i, port := range service.Ports {
		if port.Protocol == UDP {
			out.datagrams = append(out.datagrams, selectDatagrams(port, usable)...)
			continue
		}
		var lacking []string
		var refused *workload
		for _, w := range usable {
			number, ok := port.numberOn(w.entry.GetPorts())
			if !ok {
				lacking = append(lacking, w.resource.Name)
				continue
			}
			e := newEndpoint(w.entry, w.labels, w.resource.Namespace, port.Number, number)
			e.Workload = w.resource.Name
			before := len(out.endpoints)
			if out.endpoints = s.opts.appendAllowed(out.endpoints, e); len(out.endpoints) == before && len(w.problems) == 0 {
				refused = w
			}
		}
		if refused != nil {
			out.problems = append(out.problems, s.refusedPortProblem(i, port, refused))
		}
		if len(lacking) > 0 {
			out.problems = append(out.problems, unknownTargetPort(s.resource, i, port, lacking, usable))
		}
	}
	return out
}

// appendAllowed appends an endpoint, unless all proxies must refuse it. If only gateways must refuse it, appendAllowed
// sets NotForGateways.
func (o Options) appendAllowed(to []Endpoint, e Endpoint) []Endpoint {
	refusal := o.Refusal(e.Address, e.Port)
	if refusal.AppliesToAll() {
		return to
	}
	e.NotForGateways = refusal.GatewaysOnly
	return append(to, e)
}

// refusedPortProblem returns the finding about port i of a Service. On the workload w, its target is a port of the
// proxy.
func (s *source) refusedPortProblem(i int, port Port, w *workload) config.Problem {
	number, _ := port.numberOn(w.entry.GetPorts())
	refusal := s.opts.Refusal(w.entry.GetAddress(), number)
	return withCode(config.EndpointRefused, problemAt(s.resource, fmt.Sprintf("spec.ports[%d]", i), fmt.Sprint(number),
		fmt.Sprintf("workload %s: %s", w.resource.Name, refusal.Message()), refusal.Remedy))
}

func selectDatagrams(port Port, workloads []*workload) []Endpoint {
	var out []Endpoint
	for _, w := range workloads {
		if number, ok := port.numberOn(w.entry.GetPorts()); ok {
			e := newEndpoint(w.entry, w.labels, w.resource.Namespace, port.Number, number)
			e.Workload = w.resource.Name
			out = append(out, e)
		}
	}
	return out
}

// filterUsable removes workloads whose address Envoy cannot use: a service with static resolution requires IP addresses
// or unix sockets, not host names.
func (out *serviceEndpoints) filterUsable(service *Service, workloads []*workload) []*workload {
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
			fmt.Sprintf("this is not an IP address, so the service %s does not use the workload", service.Hostname),
			"set the IP address of the workload, or select the workload by a ServiceEntry with resolution: DNS"))
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
	message := fmt.Sprintf("no port has this name on workload %s", lacking[0])
	if len(lacking) > 1 {
		message += fmt.Sprintf(" and %d more workloads", len(lacking)-1)
	}
	remedy := "add the port name to the workload, or use a port number"
	if len(names) > 0 {
		remedy = "the workloads have the port names " + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + "; use one of these, or a port number"
	}
	return problemAt(r, fmt.Sprintf("spec.ports[%d].targetPort", i), port.TargetPortName, message, remedy)
}

// numberOn returns the port's number on a workload or on a listed endpoint. ports contains the port numbers of that
// workload or endpoint by name. ok is false if the target port is a name that ports does not contain.
//
// As in Istio, an endpoint's number for the service port's name has precedence over targetPort. As in Kubernetes,
// targetPort is used if the endpoint lists that number.
func (p Port) numberOn(ports map[string]uint32) (number uint32, ok bool) {
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

// HasSidecar reports whether a workload has a sidecar. As in Istio, the label security.istio.io/tlsMode specifies this.
// Without the label, a workload with a service account counts as one with a sidecar.
func HasSidecar(labels map[string]string, serviceAccount string) bool {
	if mode, ok := labels[tlsModeLabel]; ok {
		return mode == "istio"
	}
	return serviceAccount != ""
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Address == o.Address && e.Port == o.Port && e.ServicePort == o.ServicePort &&
		e.Namespace == o.Namespace && e.Workload == o.Workload && e.ServiceAccount == o.ServiceAccount &&
		e.Network == o.Network && e.Locality == o.Locality && e.Weight == o.Weight && e.MTLS == o.MTLS && e.NotForGateways == o.NotForGateways &&
		maps.Equal(e.Labels, o.Labels)
}

// localityLabels contains the labels that specify the locality of a workload without a locality field. Their values
// contain dots instead of slashes, which Kubernetes does not allow in label values.
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
