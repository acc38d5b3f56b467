package registry

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// sliceEndpoint is an endpoint of an EndpointSlice, with the values by which endpoints are ordered and merged.
type sliceEndpoint struct {
	Endpoint
	port   int // index of the Service's port
	pod    *config.Resource
	family int // 0 for the primary address of the pod
}

// sliceReader collects the endpoints of a Kubernetes Service from its EndpointSlices.
type sliceReader struct {
	cluster *clusterIndex
	source  *source
	service *Service
	found   []sliceEndpoint
	out     *serviceEndpoints
}

// addSliceEndpoints adds the endpoints of the Service's EndpointSlices to out.
func (b *builder) addSliceEndpoints(out *serviceEndpoints, s *source, service *Service) {
	slicesOf, _ := b.cluster.byService.get(objectName{service.Namespace, service.Name})
	if len(slicesOf) == 0 {
		if len(service.Selector) == 0 {
			out.problems = append(out.problems, problemAt(s.resource, "spec.selector", "",
				"a Service without a selector has no endpoints unless an EndpointSlice belongs to it (the control plane does not read Endpoints documents): requests to it fail",
				"add a selector or an EndpointSlice, or replace the Service by a ServiceEntry with endpoints"))
		}
		return
	}
	r := &sliceReader{cluster: &b.cluster, source: s, service: service, out: out}
	for _, slice := range slicesOf {
		r.readSlice(slice)
	}
	if len(r.found) == 0 {
		return
	}
	r.sort()
	mixed := len(out.endpoints)+len(out.datagrams) > 0
	out.endpoints = slices.Grow(out.endpoints, len(r.found))
	r.emit()
	if mixed { // the Service also selects WorkloadEntries
		out.sortByPort(service)
	}
}

func (r *sliceReader) readSlice(slice *config.Resource) {
	spec := sliceSpec(slice)
	if spec.AddressType == "FQDN" {
		r.report(slice, config.Warning, "addressType", spec.AddressType, "proxies do not use EndpointSlices with host names",
			"list IP addresses, or replace the Service by a ServiceEntry with resolution: DNS")
		return
	}
	var ports []slicePort
	for _, p := range spec.Ports {
		if i, ok := r.findPort(p); ok {
			ports = append(ports, slicePort{i, cmp.Or(p.Number, r.service.Ports[i].TargetPort, r.service.Ports[i].Number)})
		}
	}
	for i := range spec.Endpoints {
		r.readEndpoint(slice, &spec.Endpoints[i], ports)
	}
}

// slicePort is a port of an EndpointSlice: the index of the Service's port, and the number.
type slicePort struct {
	index  int
	number uint32
}

func (r *sliceReader) findPort(p config.SlicePort) (int, bool) {
	for i, port := range r.service.Ports {
		if port.Name == p.Name && (port.Protocol == UDP) == (p.Protocol == "UDP") {
			return i, true
		}
	}
	return 0, false
}

// readEndpoint adds an endpoint for each port. It skips endpoints that are not ready, except those that drain. An
// endpoint that refers to a pod waits for the pod, from which its labels and identity are.
func (r *sliceReader) readEndpoint(slice *config.Resource, e *config.SliceEndpoint, ports []slicePort) {
	draining := !e.Ready && e.Serving && e.Terminating && r.service.Sessions
	if !e.Ready && !draining {
		return
	}
	addr, err := netip.ParseAddr(e.Address)
	if err != nil {
		return
	}
	var pod *config.Resource
	if e.Pod != "" {
		if pod = r.cluster.pod(slice.Namespace, e.Pod); pod == nil || !hasUID(pod, e.PodUID) {
			if slice.Origin.File != "" {
				r.report(slice, config.Info, "endpoints", e.Pod, "no document of this pod is known, so proxies do not use the endpoint", "add the Pod to the configuration, or remove targetRef")
			}
			return
		}
	}
	for _, port := range ports {
		found := sliceEndpoint{port: port.index, pod: pod, Endpoint: Endpoint{
			Address: e.Address, Port: port.number, ServicePort: r.service.Ports[port.index].Number, Namespace: r.service.Namespace,
			Node: e.Node, Locality: r.cluster.locality(e.Node), Network: r.cluster.network(r.service.Namespace, nil), Hostname: e.Hostname,
		}}
		if pod != nil {
			found.Endpoint = r.cluster.podEndpoint(pod, e.Address, found.ServicePort, port.number)
			found.Hostname = cmp.Or(e.Hostname, podHostname(pod, r.service))
			found.family = slices.Index(pod.Spec.(*config.PodSpec).Addresses, addr)
		}
		found.Draining = draining
		r.found = append(r.found, found)
	}
}

// hasUID reports whether the pod has the UID. Slices and pods that users wrote may have no UID.
func hasUID(pod *config.Resource, uid string) bool {
	has := pod.Spec.(*config.PodSpec).UID
	return uid == "" || has == "" || uid == has
}

// podEndpoint returns the endpoint of a pod. Unlike for WorkloadEntries, only the label specifies whether the pod has a
// sidecar, because each pod has a service account.
func (c *clusterIndex) podEndpoint(pod *config.Resource, address string, servicePort, port uint32) Endpoint {
	spec := pod.Spec.(*config.PodSpec)
	return Endpoint{
		Address: address, Port: port, ServicePort: servicePort,
		Labels: pod.Labels, Namespace: pod.Namespace, Workload: spec.Workload, ServiceAccount: spec.ServiceAccount,
		Network: c.network(pod.Namespace, pod.Labels), Locality: c.podLocality(pod), Node: spec.Node,
		MTLS: pod.Labels[tlsModeLabel] == "istio",
	}
}

// podHostname returns the DNS label of a pod below the name of the Service. As in Istio, a pod without hostname has its
// name as label.
func podHostname(pod *config.Resource, service *Service) string {
	spec := pod.Spec.(*config.PodSpec)
	if spec.Subdomain == "" || spec.Subdomain != service.Name {
		return ""
	}
	return cmp.Or(spec.Hostname, pod.Name)
}

func (r *sliceReader) report(slice *config.Resource, severity config.Severity, field, value, message, remedy string) {
	p := problemAt(slice, field, value, message, remedy)
	p.Severity = severity
	r.out.problems = append(r.out.problems, p)
}

// sort orders the endpoints by port, pod and address family.
func (r *sliceReader) sort() {
	name := func(e *sliceEndpoint) string {
		if e.pod == nil {
			return ""
		}
		return e.pod.Name
	}
	slices.SortStableFunc(r.found, func(a, b sliceEndpoint) int {
		return cmp.Or(cmp.Compare(a.port, b.port), strings.Compare(name(&a), name(&b)), cmp.Compare(a.family, b.family),
			strings.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), compareBools(a.Draining, b.Draining))
	})
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// emit adds the sorted endpoints to the result. While a slice is replaced, two slices contain the same address: the
// ready one takes precedence. The two addresses of a pod of both IP families become one endpoint.
func (r *sliceReader) emit() {
	refused := map[string]bool{}
	var last *sliceEndpoint
	for i := range r.found {
		e := &r.found[i]
		list := &r.out.endpoints
		if r.service.Ports[e.port].Protocol == UDP {
			list = &r.out.datagrams
		}
		if last != nil && last.port == e.port && last.Port == e.Port && (last.Address == e.Address || last.pod != nil && last.pod == e.pod) {
			if last.Address != e.Address && len(*list) > 0 && (*list)[len(*list)-1].Address == last.Address && !r.source.opts.Refusal(e.Address, e.Port).AppliesToAll() {
				(*list)[len(*list)-1].SecondAddress = e.Address
			}
			continue
		}
		last = e
		before := len(*list)
		if *list = r.source.opts.appendAllowed(*list, e.Endpoint); len(*list) == before && !refused[e.Address] {
			refused[e.Address] = true
			refusal := r.source.opts.Refusal(e.Address, e.Port)
			r.out.problems = append(r.out.problems, withCode(config.EndpointRefused,
				problemAt(r.source.resource, "", fmt.Sprintf("%s:%d", e.Address, e.Port), "an EndpointSlice of the Service: "+refusal.Message(), refusal.Remedy)))
		}
	}
}

// sortByPort orders the endpoints by the ports of the service. Endpoints of one port retain their order.
func (out *serviceEndpoints) sortByPort(service *Service) {
	rank := func(e Endpoint, udp bool) int {
		return slices.IndexFunc(service.Ports, func(p Port) bool { return p.Number == e.ServicePort && (p.Protocol == UDP) == udp })
	}
	for i, list := range [][]Endpoint{out.endpoints, out.datagrams} {
		slices.SortStableFunc(list, func(a, b Endpoint) int { return cmp.Compare(rank(a, i == 1), rank(b, i == 1)) })
	}
}
