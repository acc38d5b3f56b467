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

// networkLabel is the label of a pod or a namespace that specifies the network.
const networkLabel = "topology.istio.io/network"

// serviceEndpoints contains the endpoints of a service. It is immutable.
type serviceEndpoints struct {
	endpoints []Endpoint
	// datagrams are the endpoints of UDP ports. They are separate because proxies do not serve UDP, and a TCP port
	// often has the same number.
	datagrams []Endpoint
	problems  []config.Problem
	// pods contains the pods that a ServiceEntry selects, ordered by name.
	pods []*config.Resource
}

// newServiceEndpoints returns the endpoints of service i of a source: the endpoints of the workloads that the service
// selects and of its EndpointSlices, or those that its document lists. before contains the previous endpoints, or nil
// for a new service. Unchanged lists are shared with before.
func (b *builder) newServiceEndpoints(s *source, i int, before *serviceEndpoints) *serviceEndpoints {
	service := s.services[i]
	workloads := b.workloads[service.Namespace].selectWorkloads(service.Selector)
	var out *serviceEndpoints
	switch {
	case service.Kubernetes && service.ExternalName == "":
		out = b.selectEndpoints(s, service, workloads)
		b.addSliceEndpoints(out, s, service)
	case len(service.Selector) > 0 && service.Resolution != Passthrough:
		pods := b.selectPods(service)
		for _, pod := range pods {
			if spec := pod.Spec.(*config.PodSpec); spec.Ready && !spec.Terminating {
				workloads = append(slices.Clip(workloads), newPodWorkload(pod))
			}
		}
		out = b.selectEndpoints(s, service, workloads)
		out.pods = pods
	default:
		out = &serviceEndpoints{endpoints: s.listedEndpoints[i]}
	}
	if before != nil && slices.EqualFunc(before.endpoints, out.endpoints, Endpoint.equal) {
		out.endpoints = before.endpoints
	}
	if before != nil && slices.EqualFunc(before.datagrams, out.datagrams, Endpoint.equal) {
		out.datagrams = before.datagrams
	}
	return out
}

// maxPatchedPods is the maximum number of changed pods for which selectPods updates the previous list.
const maxPatchedPods = 64

// selectPods returns the running pods that a ServiceEntry's service selects, ordered by name. After changes of single
// pods it updates the previous list.
func (b *builder) selectPods(service *Service) []*config.Resource {
	set, _ := b.cluster.pods.get(service.Namespace)
	before, changes := b.prev.endpoints[service], b.clusterChanges.pods[service.Namespace]
	if before == nil || len(changes) > maxPatchedPods {
		return set.selectPods(service.Selector)
	}
	pods := before.pods
	for _, changed := range changes {
		pods = slices.DeleteFunc(slices.Clone(pods), func(r *config.Resource) bool { return r.Name == changed.Name })
		now := b.cluster.pod(changed.Namespace, changed.Name)
		if now != nil && isRunning(now) && matchesSelector(service.Selector, now.Labels) {
			at, _ := slices.BinarySearchFunc(pods, now, compareNames)
			pods = slices.Insert(pods, at, now)
		}
	}
	return pods
}

func (b *builder) selectEndpoints(s *source, service *Service, workloads []*workload) *serviceEndpoints {
	out := &serviceEndpoints{}
	if n := len(service.Ports) * len(workloads); n > 0 {
		out.endpoints = make([]Endpoint, 0, n)
	}
	usable := out.filterUsable(service, workloads)
	for i, port := range service.Ports {
		if port.Protocol == UDP {
			out.datagrams = append(out.datagrams, b.selectDatagrams(port, usable)...)
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
			before := len(out.endpoints)
			e := b.workloadEndpoint(w, port.Number, number)
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

func (b *builder) selectDatagrams(port Port, workloads []*workload) []Endpoint {
	var out []Endpoint
	for _, w := range workloads {
		if number, ok := port.numberOn(w.entry.GetPorts()); ok {
			out = append(out, b.workloadEndpoint(w, port.Number, number))
		}
	}
	return out
}

// workloadEndpoint returns the endpoint of a selected workload.
func (b *builder) workloadEndpoint(w *workload, servicePort, port uint32) Endpoint {
	if w.pod != nil {
		return b.cluster.podEndpoint(w.resource, w.entry.GetAddress(), servicePort, port)
	}
	e := newEndpoint(w.entry, w.labels, w.resource.Namespace, servicePort, port)
	e.Workload = w.resource.Name
	if !strings.Contains(e.Workload, ".") {
		e.Hostname = e.Workload
	}
	return e
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
		e.SecondAddress == o.SecondAddress && e.Node == o.Node && e.Hostname == o.Hostname && e.Draining == o.Draining &&
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
