package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// readClusterObject reads an object of a cluster kind. It is lenient: a field with an unexpected type counts as missing,
// and unknown fields are skipped. An object without a name, and a pod that cannot receive connections, has no effect.
func (d *document) readClusterObject(h objectHeader) *Resource {
	object := lenientNode{h.root}
	meta := object.field("metadata")
	labels := meta.field("labels").textMap()
	r := &Resource{Key: d.key, APIVersion: h.apiVersion, Origin: d.origin}
	r.Labels, r.Annotations = TrimMetadata(d.key.Kind, labels, meta.field("annotations").textMap())
	r.Created, _ = time.Parse(time.RFC3339, meta.field("creationTimestamp").text())
	switch d.key.Kind {
	case Pod:
		r.Spec = readPod(object, d.key.Name, labels)
	case EndpointSlice:
		r.Spec = readEndpointSlice(object, d.key.Namespace, labels)
	case Node:
		r.Spec = NewNodeSpec(labels)
	case Namespace:
		r.Spec = &NamespaceSpec{Terminating: meta.field("deletionTimestamp").text() != ""}
	}
	if reason := d.explainInert(r); reason != "" {
		d.inert = true
		d.reportAs(KindNoEffect, Info, d.origin, "", "", fmt.Sprintf("the %s was read and has no effect here: %s", d.key.Kind, reason), noRemedyNeeded)
		return nil
	}
	return r
}

// explainInert returns the reason why an object of a cluster kind has no effect, or "" if it has one.
func (d *document) explainInert(r *Resource) string {
	if r.Name == "" {
		return "it has no name"
	}
	pod, ok := r.Spec.(*PodSpec)
	switch {
	case ok && len(pod.Addresses) == 0:
		return "it has no address (status.podIPs)"
	case ok && pod.IsFinished():
		return "it is finished"
	}
	return ""
}

func readPod(object lenientNode, name string, labels map[string]string) *PodSpec {
	meta, spec, status := object.field("metadata"), object.field("spec"), object.field("status")
	pod := &PodSpec{
		UID:            meta.field("uid").text(),
		ServiceAccount: spec.field("serviceAccountName").text(),
		Node:           spec.field("nodeName").text(),
		Hostname:       spec.field("hostname").text(),
		Subdomain:      spec.field("subdomain").text(),
		Phase:          status.field("phase").text(),
		HostNetwork:    spec.field("hostNetwork").isTrue(),
		Terminating:    meta.field("deletionTimestamp").text() != "",
	}
	if pod.ServiceAccount == "" {
		pod.ServiceAccount = "default"
	}
	for _, ip := range status.field("podIPs").items() {
		pod.addAddress(ip.field("ip").text())
	}
	pod.addAddress(status.field("podIP").text())
	var controller lenientNode
	for _, owner := range meta.field("ownerReferences").items() {
		if owner.field("controller").isTrue() {
			controller = owner
		}
	}
	pod.Workload = WorkloadName(name, controller.field("kind").text(), controller.field("name").text(), labels)
	for _, condition := range status.field("conditions").items() {
		if condition.field("type").text() == "Ready" {
			pod.Ready = condition.field("status").text() == "True"
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, container := range spec.field(list).items() {
			pod.addPorts(container)
		}
	}
	return pod
}

func (p *PodSpec) addAddress(text string) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return
	}
	for _, known := range p.Addresses {
		if known.Is4() == addr.Is4() {
			return
		}
	}
	p.Addresses = append(p.Addresses, addr)
}

func (p *PodSpec) addPorts(container lenientNode) {
	for _, port := range container.field("ports").items() {
		if name, number := port.field("name").text(), port.field("containerPort").port(); name != "" && number != 0 {
			p.Ports = append(p.Ports, PodPort{Name: name, Number: number})
		}
	}
}

func readEndpointSlice(object lenientNode, namespace string, labels map[string]string) *EndpointSliceSpec {
	slice := &EndpointSliceSpec{Service: labels[ServiceNameLabel], AddressType: object.field("addressType").text()}
	for _, port := range object.field("ports").items() {
		p := SlicePort{Name: port.field("name").text(), Protocol: port.field("protocol").text(), Number: port.field("port").port()}
		if p.Protocol == "" {
			p.Protocol = "TCP"
		}
		slice.Ports = append(slice.Ports, p)
	}
	for _, endpoint := range object.field("endpoints").items() {
		slice.addEndpoint(endpoint, namespace)
	}
	return slice
}

// addEndpoint adds the addresses of an endpoint. As Kubernetes specifies, an endpoint without conditions is ready, and
// a ready endpoint is serving.
func (s *EndpointSliceSpec) addEndpoint(endpoint lenientNode, namespace string) {
	e := SliceEndpoint{Node: endpoint.field("nodeName").text(), Zone: endpoint.field("zone").text(), Hostname: endpoint.field("hostname").text()}
	conditions := endpoint.field("conditions")
	e.Ready = !conditions.field("ready").isFalse()
	e.Serving = e.Ready
	if serving := conditions.field("serving"); serving.exists() {
		e.Serving = !serving.isFalse()
	}
	e.Terminating = conditions.field("terminating").isTrue()
	target := endpoint.field("targetRef")
	if in := target.field("namespace").text(); target.field("kind").text() == string(Pod) && (in == "" || in == namespace) {
		e.Pod, e.PodUID = target.field("name").text(), target.field("uid").text()
	}
	for _, address := range endpoint.field("addresses").items() {
		if e.Address = address.text(); e.Address != "" {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
}

// lenientNode reads a part of a document without reporting problems. Methods of the zero value, which represents a
// missing part, return zero values.
type lenientNode struct{ node *yaml.Node }

func (n lenientNode) field(name string) lenientNode { return lenientNode{mappingField(n.node, name)} }

func (n lenientNode) exists() bool { return n.node != nil && !isNull(n.node) }

func (n lenientNode) text() string {
	if !n.exists() || n.node.Kind != yaml.ScalarNode {
		return ""
	}
	return n.node.Value
}

func (n lenientNode) isTrue() bool  { return n.text() == "true" }
func (n lenientNode) isFalse() bool { return n.text() == "false" }

// port returns a port number, or 0 for other values.
func (n lenientNode) port() uint32 {
	number, _ := strconv.ParseUint(n.text(), 10, 16)
	return uint32(number)
}

func (n lenientNode) items() []lenientNode {
	if n.node == nil || n.node.Kind != yaml.SequenceNode {
		return nil
	}
	items := make([]lenientNode, len(n.node.Content))
	for i, item := range n.node.Content {
		items[i] = lenientNode{followAlias(item)}
	}
	return items
}

func (n lenientNode) textMap() map[string]string {
	if n.node == nil || n.node.Kind != yaml.MappingNode || len(n.node.Content) == 0 {
		return nil
	}
	out := make(map[string]string, len(n.node.Content)/2)
	for i := 0; i+1 < len(n.node.Content); i += 2 {
		out[followAlias(n.node.Content[i]).Value] = lenientNode{followAlias(n.node.Content[i+1])}.text()
	}
	return out
}
