package translate_test

import (
	"fmt"
	"strings"
)

// clusterGenerators generate objects of a Kubernetes cluster for the Services of the random mesh. Pods and slices change
// independently, so a slice may refer to a pod that does not exist. The pods named captured and unserved are those of
// proxies.
var clusterGenerators = []func(documentGenerator) string{
	documentGenerator.pod, documentGenerator.pod, documentGenerator.pod, documentGenerator.slice, documentGenerator.slice, documentGenerator.slice,
	documentGenerator.node, documentGenerator.clusterNamespace, documentGenerator.distributedService, documentGenerator.distributedService,
}

func (c documentGenerator) pod() string {
	name, namespace := c.numbered("pod-", 3), c.namespace()
	if c.IntN(5) == 0 {
		name, namespace = c.pick("captured", "unserved"), c.pick("one", "three")
	}
	labels := fmt.Sprintf(", labels: {app: %s, version: %s%s%s}", c.pick("a", "b"), c.pick("v1", "v2"), c.maybe(", security.istio.io/tlsMode: istio"), c.rarely(", topology.istio.io/network: n"))
	return document("v1", "Pod", name, namespace+labels, fmt.Sprintf("serviceAccountName: %s, nodeName: %s%s", c.pick("a", "b"), c.numbered("node-", 3), c.rarely(", hostname: h, subdomain: red"))) +
		fmt.Sprintf("\nstatus: {podIP: 127.193.2.%d, conditions: [{type: Ready, status: %q}]}", 1+c.IntN(4), c.pick("True", "True", "False"))
}

func (c documentGenerator) slice() string {
	var endpoints, ports []string
	for range c.IntN(4) {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [127.193.2.%d], nodeName: %s%s, conditions: {%s}}", 1+c.IntN(4), c.numbered("node-", 3),
			c.pick("", fmt.Sprintf(", targetRef: {kind: Pod, name: %s}", c.numbered("pod-", 3))), c.pick("", "", "ready: true", "ready: false, serving: true, terminating: true")))
	}
	for _, name := range []string{"p80", "p81", "p90"} {
		ports = append(ports, fmt.Sprintf("{name: %s, port: %d}", name, 8080+c.IntN(2)))
	}
	text := document("discovery.k8s.io/v1", "EndpointSlice", c.numbered("slice-", 3), c.namespace()+", labels: {kubernetes.io/service-name: "+c.pick("red", "blue")+"}", "")
	return fmt.Sprintf("%s\naddressType: %s\nports: [%s]\nendpoints: [%s]", strings.TrimSuffix(text, "\nspec: {}"), c.pick("IPv4", "IPv4", "IPv4", "FQDN"), strings.Join(ports, ", "), strings.Join(endpoints, ", "))
}

// node returns a Node. A Node has no namespace.
func (c documentGenerator) node() string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, namespace: , labels: {topology.kubernetes.io/region: %s, topology.kubernetes.io/zone: %s}}", c.numbered("node-", 3), c.pick("r1", "r2"), c.pick("z1", "z2"))
}

func (c documentGenerator) clusterNamespace() string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, namespace: , labels: {topology.istio.io/network: %s}, annotations: {networking.istio.io/traffic-distribution: %s}}", c.namespace(), c.pick("n", "m"), c.pick("PreferClose", "PreferSameNode", "Any"))
}

func (c documentGenerator) distributedService() string {
	return document("v1", "Service", c.pick("red", "blue"), c.namespace()+c.rarely(", labels: {istio.io/persistent-session: s}"), fmt.Sprintf("clusterIP: %s, %sselector: %s, ports: [%s]",
		c.pick("None", "240.9.9.1"), c.pick("", "trafficDistribution: PreferClose, ", "trafficDistribution: PreferSameNode, ", "internalTrafficPolicy: Local, "), c.labels(), c.ports("port", "appProtocol")))
}
