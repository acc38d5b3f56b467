package kube

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// converter converts API objects of the core and discovery groups to resources. Equal strings, label sets and ports of
// the resources share memory.
type converter struct {
	mu       sync.Mutex // the interner is not safe for concurrent use
	interner *config.Interner
}

func newConverter() *converter { return &converter{interner: config.NewInterner()} }

// clusterKind describes how to read a kind of config whose objects Kubernetes writes, or a Service.
type clusterKind struct {
	kind       config.Kind
	apiVersion string
	plural     string
	newList    func() runtime.Object
	// spec returns the spec of an object, and its metadata.
	spec func(*converter, runtime.Object) (any, *metav1.ObjectMeta)
}

// clusterKinds are the kinds that Source reads in complete objects. Namespace is the first one, because the others
// depend on it.
var clusterKinds = []clusterKind{
	{config.Namespace, "v1", "namespaces", func() runtime.Object { return &corev1.NamespaceList{} }, convertNamespace},
	{config.Service, "v1", "services", func() runtime.Object { return &corev1.ServiceList{} }, convertService},
	{config.EndpointSlice, "discovery.k8s.io/v1", "endpointslices", func() runtime.Object { return &discoveryv1.EndpointSliceList{} }, convertEndpointSlice},
	{config.Pod, "v1", "pods", func() runtime.Object { return &corev1.PodList{} }, convertPod},
	{config.Node, "v1", "nodes", func() runtime.Object { return &corev1.NodeList{} }, convertNode},
}

// convert returns the resource of an object.
func (c *converter) convert(k clusterKind, o runtime.Object) *config.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	spec, meta := k.spec(c, o)
	labels, annotations := config.TrimMetadata(k.kind, meta.Labels, meta.Annotations)
	return &config.Resource{
		Key:        config.Key{Kind: k.kind, Namespace: c.interner.InternString(meta.Namespace), Name: meta.Name},
		APIVersion: k.apiVersion,
		Labels:     c.interner.InternLabels(labels), Annotations: c.interner.InternLabels(annotations),
		Created: meta.CreationTimestamp.UTC(),
		Spec:    spec,
	}
}

func convertNamespace(_ *converter, o runtime.Object) (any, *metav1.ObjectMeta) {
	namespace := o.(*corev1.Namespace)
	return &config.NamespaceSpec{Terminating: namespace.DeletionTimestamp != nil}, &namespace.ObjectMeta
}

func convertNode(_ *converter, o runtime.Object) (any, *metav1.ObjectMeta) {
	node := o.(*corev1.Node)
	return config.NewNodeSpec(node.Labels), &node.ObjectMeta
}

func convertService(c *converter, o runtime.Object) (any, *metav1.ObjectMeta) {
	service := o.(*corev1.Service)
	in := &service.Spec
	spec := &config.ServiceSpec{
		Type: c.interner.InternString(string(in.Type)), ClusterIP: in.ClusterIP, ExternalName: in.ExternalName,
		Selector:                 c.interner.InternLabels(in.Selector),
		PublishNotReadyAddresses: in.PublishNotReadyAddresses,
		NodeLocal:                in.InternalTrafficPolicy != nil && *in.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	if len(in.ClusterIPs) > 1 {
		spec.ClusterIPs = in.ClusterIPs
	}
	if in.TrafficDistribution != nil {
		spec.TrafficDistribution = c.interner.InternString(*in.TrafficDistribution)
	}
	for _, port := range in.Ports {
		p := config.ServicePort{Name: c.interner.InternString(port.Name), Protocol: c.interner.InternString(string(port.Protocol)), Port: uint32(port.Port)}
		if port.AppProtocol != nil {
			p.AppProtocol = c.interner.InternString(*port.AppProtocol)
		}
		if port.TargetPort.Type == intstr.String {
			p.TargetPortName = c.interner.InternString(port.TargetPort.StrVal)
		} else {
			p.TargetPort = uint32(port.TargetPort.IntVal)
		}
		spec.Ports = append(spec.Ports, p)
	}
	return spec, &service.ObjectMeta
}

func convertEndpointSlice(c *converter, o runtime.Object) (any, *metav1.ObjectMeta) {
	slice := o.(*discoveryv1.EndpointSlice)
	spec := &config.EndpointSliceSpec{Service: c.interner.InternString(slice.Labels[config.ServiceNameLabel]), AddressType: c.interner.InternString(string(slice.AddressType))}
	for _, port := range slice.Ports {
		p := config.SlicePort{Protocol: "TCP"}
		if port.Name != nil {
			p.Name = c.interner.InternString(*port.Name)
		}
		if port.Protocol != nil {
			p.Protocol = c.interner.InternString(string(*port.Protocol))
		}
		if port.Port != nil {
			p.Number = uint32(*port.Port)
		}
		spec.Ports = append(spec.Ports, p)
	}
	spec.Endpoints = make([]config.SliceEndpoint, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		spec.Endpoints = c.appendEndpoint(spec.Endpoints, &slice.Endpoints[i], slice.Namespace)
	}
	return spec, &slice.ObjectMeta
}

// appendEndpoint appends the addresses of an endpoint. An endpoint without conditions is ready, and a ready endpoint is
// serving.
func (c *converter) appendEndpoint(list []config.SliceEndpoint, in *discoveryv1.Endpoint, namespace string) []config.SliceEndpoint {
	e := config.SliceEndpoint{Ready: isTrueOr(in.Conditions.Ready, true), Terminating: isTrueOr(in.Conditions.Terminating, false)}
	e.Serving = isTrueOr(in.Conditions.Serving, e.Ready)
	if in.NodeName != nil {
		e.Node = c.interner.InternString(*in.NodeName)
	}
	if in.Zone != nil {
		e.Zone = c.interner.InternString(*in.Zone)
	}
	if in.Hostname != nil {
		e.Hostname = *in.Hostname
	}
	if target := in.TargetRef; target != nil && target.Kind == string(config.Pod) && (target.Namespace == "" || target.Namespace == namespace) {
		e.Pod, e.PodUID = target.Name, string(target.UID)
	}
	for _, address := range in.Addresses {
		e.Address = address
		list = append(list, e)
	}
	return list
}

func isTrueOr(value *bool, missing bool) bool {
	if value == nil {
		return missing
	}
	return *value
}

func convertPod(c *converter, o runtime.Object) (any, *metav1.ObjectMeta) {
	pod := o.(*corev1.Pod)
	spec := &config.PodSpec{
		UID: string(pod.UID), ServiceAccount: c.interner.InternString(pod.Spec.ServiceAccountName), Node: c.interner.InternString(pod.Spec.NodeName),
		Hostname: pod.Spec.Hostname, Subdomain: c.interner.InternString(pod.Spec.Subdomain), Phase: c.interner.InternString(string(pod.Status.Phase)),
		HostNetwork: pod.Spec.HostNetwork, Terminating: pod.DeletionTimestamp != nil,
		Addresses: podAddresses(&pod.Status), Ports: c.interner.InternPorts(podPorts(&pod.Spec)),
	}
	if spec.ServiceAccount == "" {
		spec.ServiceAccount = "default"
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			spec.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	kind, owner := "", ""
	if controller := metav1.GetControllerOf(pod); controller != nil {
		kind, owner = controller.Kind, controller.Name
	}
	spec.Workload = c.interner.InternString(config.WorkloadName(pod.Name, kind, owner, pod.Labels))
	return spec, &pod.ObjectMeta
}

// podAddresses returns the addresses of a pod, at most one of each family. The first one is the primary address.
func podAddresses(status *corev1.PodStatus) []netip.Addr {
	texts := []string{status.PodIP}
	if len(status.PodIPs) > 0 {
		texts = texts[:0]
		for _, ip := range status.PodIPs {
			texts = append(texts, ip.IP)
		}
	}
	var addresses []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err == nil && (len(addresses) == 0 || len(addresses) == 1 && addresses[0].Is4() != addr.Is4()) {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}

// podPorts returns the named ports of a pod's containers.
func podPorts(spec *corev1.PodSpec) (ports []config.PodPort) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.Name != "" && port.ContainerPort != 0 {
					ports = append(ports, config.PodPort{Name: port.Name, Number: uint32(port.ContainerPort)})
				}
			}
		}
	}
	return ports
}
