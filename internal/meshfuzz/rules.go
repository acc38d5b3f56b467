package meshfuzz

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// nonDisruptiveEdits are the edits that do not change the responses of permanent services. Edits that are listed twice
// are twice as frequent.
var nonDisruptiveEdits = []func(*Mesh) (Edit, bool){
	(*Mesh).addOrRemoveService, (*Mesh).editInstances, (*Mesh).editInstances, (*Mesh).editDestinationRule,
	(*Mesh).editVirtualService, (*Mesh).editVirtualService, (*Mesh).editAuthorization, (*Mesh).editExternal,
	(*Mesh).editGateway,
}

// editVirtualService routes requests for a service to the service itself, or to permanent services.
func (m *Mesh) editVirtualService() (Edit, bool) {
	s := pick(m, m.services)
	namespace := m.namespace(s.number)
	s.routes = nil
	if s.rule = !m.oneIn(4); !s.rule {
		return m.remove(config.VirtualService, namespace, s.name())
	}
	var http []any
	for range m.rand.IntN(3) {
		route := m.route(s)
		route["match"] = []any{m.match()}
		http = append(http, route)
	}
	http = append(http, m.route(s))
	spec := object{"hosts": []any{m.host(s)}, "http": http}
	if m.o.Disruptive {
		m.disturb(spec)
	}
	return m.put(config.VirtualService, networking, namespace, s.name(), spec)
}

func (m *Mesh) route(s *service) object {
	targets := []any{m.destination(s)}
	if m.oneIn(2) {
		targets = append(targets, m.destination(s))
		share := m.rand.IntN(101)
		targets[0].(object)["weight"], targets[1].(object)["weight"] = share, 100-share
	}
	route := object{"route": targets, "timeout": fmt.Sprintf("%ds", 10+m.rand.IntN(20))}
	switch m.rand.IntN(4) {
	case 0:
		route["retries"] = object{"attempts": 1 + m.rand.IntN(3), "retryOn": "connect-failure,refused-stream"}
	case 1:
		route["headers"] = object{"request": object{"set": object{"x-edit": fmt.Sprint(m.rand.IntN(1000))}}}
	case 2:
		route["rewrite"] = object{"uri": fmt.Sprintf("/edit%d", m.rand.IntN(10))}
	}
	return route
}

func (m *Mesh) destination(s *service) object {
	t := target{service: s}
	if m.o.Permanent > 0 && m.oneIn(2) {
		t.service = m.services[m.rand.IntN(m.o.Permanent)] // the permanent services are first
	}
	destination := object{"host": m.host(t.service), "port": object{"number": 80}}
	if t.service.subsets && m.oneIn(2) {
		t.subset = pick(m, []string{"v0", "v1"})
		destination["subset"] = t.subset
	}
	s.routes = append(s.routes, t)
	return object{"destination": destination}
}

func (m *Mesh) match() object {
	switch m.rand.IntN(4) {
	case 0:
		return object{"uri": object{"prefix": fmt.Sprintf("/p%d", m.rand.IntN(5))}}
	case 1:
		return object{"headers": object{"x-user": object{"exact": fmt.Sprintf("u%d", m.rand.IntN(5))}}}
	case 2:
		return object{"sourceLabels": object{"app": fmt.Sprintf("s%d", m.rand.IntN(m.o.Services))}}
	}
	return object{"method": object{"exact": pick(m, []string{"GET", "POST"})}, "uri": object{"regex": fmt.Sprintf("/r%d.*", m.rand.IntN(5))}}
}

const security = "security.istio.io/v1"

func (m *Mesh) editAuthorization() (Edit, bool) {
	namespace, name := m.namespace(m.rand.IntN(m.o.Namespaces)), fmt.Sprintf("p%d", m.rand.IntN(3))
	if m.oneIn(3) {
		return m.remove(config.AuthorizationPolicy, namespace, name)
	}
	paths := []any{"/refused*", fmt.Sprintf("/refused/%d", m.rand.IntN(10))}
	operation := object{"paths": paths}
	if m.o.Workloads { // without ports, the policy would also deny connections to TCP ports, which have no paths
		operation["ports"] = []any{fmt.Sprint(m.o.Port)}
	}
	spec := object{"action": "DENY", "rules": []any{object{"to": []any{object{"operation": operation}}}}}
	if m.oneIn(2) {
		spec["selector"] = object{"matchLabels": object{"app": fmt.Sprintf("s%d", m.rand.IntN(m.o.Services))}}
	}
	return m.put(config.AuthorizationPolicy, security, namespace, name, spec)
}

// editPeersOfWorkloads edits a PeerAuthentication in mode STRICT or PERMISSIVE. All clients have certificates, so it
// does not change responses.
func (m *Mesh) editPeersOfWorkloads() (Edit, bool) {
	namespace, name := m.namespace(m.rand.IntN(m.o.Namespaces)), fmt.Sprintf("a%d", m.rand.IntN(2))
	if m.oneIn(3) {
		return m.remove(config.PeerAuthentication, namespace, name)
	}
	mode := func() object { return object{"mode": pick(m, []string{"STRICT", "PERMISSIVE"})} }
	spec := object{"mtls": mode()}
	if name == "a1" {
		spec["selector"] = object{"matchLabels": object{"app": fmt.Sprintf("s%d", m.rand.IntN(m.o.Services))}}
		if m.oneIn(2) {
			spec["portLevelMtls"] = object{fmt.Sprint(m.o.Port): mode()}
		}
	}
	return m.put(config.PeerAuthentication, security, namespace, name, spec)
}

// editExternal edits a ServiceEntry of an external host. The tests do not send requests to external hosts.
func (m *Mesh) editExternal() (Edit, bool) {
	namespace, name := m.namespace(m.rand.IntN(m.o.Namespaces)), fmt.Sprintf("out%d", m.rand.IntN(3))
	if m.oneIn(3) {
		return m.remove(config.ServiceEntry, namespace, name)
	}
	spec := object{
		"hosts": []any{name + ".elsewhere.example"}, "location": "MESH_EXTERNAL", "resolution": pick(m, []string{"DNS", "NONE", "STATIC"}),
		"ports": []any{object{"number": 80 + m.rand.IntN(3), "name": "http", "protocol": pick(m, []string{"HTTP", "HTTP2", "GRPC"})}},
	}
	if spec["resolution"] == "STATIC" {
		spec["endpoints"] = []any{object{"address": fmt.Sprintf("192.0.2.%d", 1+m.rand.IntN(200))}}
	}
	return m.put(config.ServiceEntry, networking, namespace, name, spec)
}

func (m *Mesh) editGateway() (Edit, bool) {
	name := fmt.Sprintf("g%d", m.rand.IntN(2))
	if m.oneIn(3) {
		return m.remove(config.Gateway, "ns0", name)
	}
	spec := object{"selector": object{"istio": "edge"}, "servers": []any{object{
		"port":  object{"number": 9000 + m.rand.IntN(4), "name": "http", "protocol": "HTTP"},
		"hosts": []any{pick(m, []string{"*", "shop.example.com", "ns0/*.example.com"})},
	}}}
	if m.o.Disruptive && m.oneIn(3) {
		spec["servers"] = []any{object{
			"port": object{"number": 9443, "name": "https", "protocol": "HTTPS"}, "hosts": []any{"shop.example.com"},
			"tls": object{"mode": pick(m, []string{"SIMPLE", "MUTUAL"}), "credentialName": "shop"},
		}}
	}
	return m.put(config.Gateway, networking, "ns0", name, spec)
}
