package config

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// serviceFields lists all fields of a Kubernetes Service's spec, including removed ones. The fields that readService
// does not read configure the cluster's own load balancing, so they have no effect on a mesh.
var serviceFields = []string{
	"type", "clusterIP", "clusterIPs", "externalName", "selector", "ports", "sessionAffinity", "sessionAffinityConfig",
	"externalIPs", "externalTrafficPolicy", "internalTrafficPolicy", "healthCheckNodePort", "ipFamilies", "ipFamilyPolicy",
	"ipFamily", "loadBalancerIP", "loadBalancerClass", "loadBalancerSourceRanges", "publishNotReadyAddresses",
	"allocateLoadBalancerNodePorts", "trafficDistribution", "topologyKeys",
}

// nodeLocalPolicy is the value of internalTrafficPolicy that selects the endpoints on the client's node.
const nodeLocalPolicy = "Local"

// Values of trafficDistribution. PreferClose is the former name of PreferSameZone.
const (
	PreferClose    = "PreferClose"
	PreferSameZone = "PreferSameZone"
	PreferSameNode = "PreferSameNode"
)

var servicePortFields = []string{"name", "protocol", "appProtocol", "port", "targetPort", "nodePort"}

var (
	serviceTypes     = []string{"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}
	serviceProtocols = []string{"TCP", "UDP", "SCTP"}
	sessionAffinity  = []string{"None", "ClientIP"}
	trafficPolicies  = []string{"Cluster", nodeLocalPolicy}
	distributions    = []string{PreferSameZone, PreferSameNode, PreferClose}
	portName         = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`)
)

func (d *document) readService(n *yaml.Node) *ServiceSpec {
	spec := &ServiceSpec{Type: "ClusterIP"}
	if n == nil || isNull(n) {
		d.refuseAt(d.origin, "spec", "", "a Service needs a spec", "set ports and a selector")
		return spec
	}
	d.readFields(n, "spec", serviceFields, func(name string, value *yaml.Node, path string) {
		switch name {
		case "type":
			spec.Type = d.checkOneOf(value, path, serviceTypes)
		case "clusterIP":
			spec.ClusterIP, _ = d.readText(value, path)
		case "clusterIPs":
			d.readClusterIPs(value, path, spec)
		case "externalName":
			spec.ExternalName, _ = d.readText(value, path)
		case "selector":
			if spec.Selector = d.readTextMap(value, path); len(spec.Selector) == 0 {
				spec.Selector = nil
			}
		case "ports":
			spec.Ports = d.readServicePorts(value, path)
		case "publishNotReadyAddresses":
			spec.PublishNotReadyAddresses, _ = d.readBool(value, path)
		case "internalTrafficPolicy":
			spec.NodeLocal = d.readKnown(value, path, trafficPolicies) == nodeLocalPolicy
		case "trafficDistribution":
			spec.TrafficDistribution = d.readKnown(value, path, distributions)
		case "sessionAffinity":
			if d.checkOneOf(value, path, sessionAffinity) == "ClientIP" {
				d.reportAs(NoEffect, Warning, d.nodePosition(value), path, value.Value, "has no effect in this version", "remove it")
			}
		}
	})
	if !d.refused {
		d.checkService(spec)
	}
	return spec
}

func (d *document) checkOneOf(n *yaml.Node, path string, allowed []string) string {
	text, ok := d.readText(n, path)
	if ok && !contains(allowed, text) {
		remedy := "one of: " + joinNames(allowed)
		if match := suggest.Name(text, allowed); match != "" {
			remedy = fmt.Sprintf("did you mean %s? Allowed are %s", match, joinNames(allowed))
		}
		d.refuse(n, path, text, "not a value of this field", remedy)
	}
	return text
}

// readKnown returns the text of n. Newer versions of Kubernetes may have other values than known, so another value is a
// warning.
func (d *document) readKnown(n *yaml.Node, path string, known []string) string {
	text, ok := d.readText(n, path)
	if ok && !contains(known, text) {
		d.reportAs(NoEffect, Warning, d.nodePosition(n), path, text, "not a known value, so clients use all endpoints", "use one of: "+joinNames(known))
	}
	return text
}

// readClusterIPs reads clusterIPs into spec. If clusterIP is not set, it becomes the first of clusterIPs, as in
// Kubernetes.
func (d *document) readClusterIPs(n *yaml.Node, path string, spec *ServiceSpec) {
	if !d.isList(n, path) {
		return
	}
	var all []string
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		item = followAlias(item)
		ip, ok := d.readText(item, at)
		if ok && ip != "None" {
			d.checkClusterIP(d.nodePosition(item), at, ip)
		}
		all = append(all, ip)
	}
	if len(all) > 0 && spec.ClusterIP == "" {
		spec.ClusterIP = all[0]
	}
	if len(all) > 1 {
		spec.ClusterIPs = all
	}
}

func (d *document) checkClusterIP(at Position, path, ip string) {
	if _, err := netip.ParseAddr(ip); err != nil {
		d.refuseAt(at, path, ip, "not an IP address", "set an IP address, or None for a headless Service, or remove the field")
	}
}

func (d *document) readServicePorts(n *yaml.Node, path string) []ServicePort {
	if !d.isList(n, path) {
		return nil
	}
	var ports []ServicePort
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		item = followAlias(item)
		d.positions[at] = d.nodePosition(item)
		ports = append(ports, d.readServicePort(item, at))
	}
	return ports
}

func (d *document) readServicePort(n *yaml.Node, path string) ServicePort {
	port := ServicePort{Protocol: "TCP"}
	d.readFields(n, path, servicePortFields, func(name string, value *yaml.Node, path string) {
		switch name {
		case "name":
			port.Name, _ = d.readText(value, path)
		case "protocol":
			port.Protocol = d.checkOneOf(value, path, serviceProtocols)
		case "appProtocol":
			port.AppProtocol, _ = d.readText(value, path)
		case "port":
			port.Port = d.readPortNumber(value, path)
		case "targetPort":
			d.readTargetPort(value, path, &port)
		case "nodePort":
			d.readInt(value, path, 0, math.MaxUint16)
		}
	})
	return port
}

func (d *document) readPortNumber(n *yaml.Node, path string) uint32 {
	number, _ := d.readInt(n, path, 1, math.MaxUint16)
	return uint32(number)
}

func (d *document) readTargetPort(n *yaml.Node, path string, port *ServicePort) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		port.TargetPort = d.readPortNumber(n, path)
		return
	}
	if port.TargetPortName = n.Value; isDigits(n.Value) {
		d.refuse(n, path, n.Value, "a value in quotes is the name of a port, but this is not a valid name", "write the number without quotes")
	} else if !isPortName(n.Value) {
		d.refuse(n, path, n.Value, "not the name of a port", "use at most 15 lower-case letters, digits and '-', with a letter among them, or a number")
	}
}

func isPortName(name string) bool {
	return portName.MatchString(name) && strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") && !strings.Contains(name, "--")
}

func (d *document) checkService(spec *ServiceSpec) {
	if spec.Type == "ExternalName" {
		d.checkExternalName(spec)
	} else if len(spec.Ports) == 0 && spec.ClusterIP != "None" {
		d.refuseAt(d.fieldPosition("spec.ports"), "spec.ports", "", "a Service needs ports", "list the ports to which clients connect")
	}
	if ip := spec.ClusterIP; ip != "" && ip != "None" {
		d.checkClusterIP(d.fieldPosition("spec.clusterIP"), "spec.clusterIP", ip)
	}
	d.checkLabels(spec.Selector, "spec.selector")
	d.checkServicePorts(spec.Ports)
}

func (d *document) checkExternalName(spec *ServiceSpec) {
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if !dnsSubdomain.MatchString(name) {
		d.refuseAt(d.fieldPosition("spec.externalName"), "spec.externalName", spec.ExternalName, "a Service of type ExternalName needs the name of a host", "set its DNS name in lower case")
	}
}

func (d *document) checkServicePorts(ports []ServicePort) {
	names, numbers := map[string]int{}, map[string]int{}
	for i, p := range ports {
		path := fmt.Sprintf("spec.ports[%d]", i)
		switch {
		case p.Port == 0:
			d.refuseAt(d.fieldPosition(path), path+".port", "", "a port needs a number", "set port")
			continue
		case p.Name == "" && len(ports) > 1:
			d.refuseAt(d.fieldPosition(path), path+".name", "", "if a Service has several ports, each needs a name", "set a name that begins with the protocol: http, grpc, tcp-…")
		case p.Name != "" && !dnsLabel.MatchString(p.Name):
			d.refuseAt(d.fieldPosition(path+".name"), path+".name", p.Name, "not a port's name", "use lower-case letters, digits and '-'")
		}
		if first, taken := names[p.Name]; taken && p.Name != "" {
			d.refuseAt(d.fieldPosition(path+".name"), path+".name", p.Name, fmt.Sprintf("ports %d and %d have the same name", first, i), "rename one")
		}
		number := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if first, taken := numbers[number]; taken {
			d.refuseAt(d.fieldPosition(path+".port"), path+".port", number, fmt.Sprintf("ports %d and %d have the same number", first, i), "remove one")
		}
		names[p.Name], numbers[number] = i, i
	}
}
