package meshfuzz

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// allEdits contains all kinds of edits, including those that change the responses of permanent services.
var allEdits = append([]func(*Mesh) (Edit, bool){
	(*Mesh).editPeerAuthentication, (*Mesh).editSidecar, (*Mesh).allow, (*Mesh).bindToGateway, (*Mesh).routeTCP,
	(*Mesh).shareHost, (*Mesh).editAlias, (*Mesh).editSnippet,
}, nonDisruptiveEdits...)

// disturb may add one of these to a VirtualService: a fault, a redirect, a restricted exportTo or another host.
func (m *Mesh) disturb(spec object) {
	route := spec["http"].([]any)[0].(object)
	switch m.rand.IntN(8) {
	case 0:
		route["fault"] = object{"abort": object{"httpStatus": 503, "percentage": object{"value": 10}}}
	case 1:
		delete(route, "route")
		delete(route, "rewrite")
		delete(route, "timeout")
		delete(route, "retries")
		route["redirect"] = object{"uri": "/elsewhere"}
	case 2:
		spec["exportTo"] = []any{pick(m, []string{".", "*", "ns1"})}
	case 3:
		spec["hosts"] = append(spec["hosts"].([]any), "*.example.org")
	}
}

func (m *Mesh) editPeerAuthentication() (Edit, bool) {
	namespace, name := pick(m, []string{"ns0", "ns1", "istio-system"}), "default"
	spec := object{"mtls": object{"mode": pick(m, []string{"STRICT", "PERMISSIVE", "DISABLE"})}}
	if namespace != "istio-system" && m.oneIn(2) {
		name = "one"
		spec["selector"] = object{"matchLabels": object{"app": fmt.Sprintf("s%d", m.rand.IntN(m.o.Services))}}
		spec["portLevelMtls"] = object{fmt.Sprint(m.o.Port): object{"mode": "DISABLE"}}
	}
	if m.oneIn(3) {
		return m.remove(config.PeerAuthentication, namespace, name)
	}
	return m.put(config.PeerAuthentication, security, namespace, name, spec)
}

func (m *Mesh) editSidecar() (Edit, bool) {
	namespace := pick(m, []string{"ns0", "ns1", "istio-system"})
	if m.oneIn(2) {
		return m.remove(config.Sidecar, namespace, "default")
	}
	hosts := []any{pick(m, []string{"*/*", "./*", "ns0/*", "ns1/*.example.com"}), "istio-system/*"}
	spec := object{"egress": []any{object{"hosts": hosts}}}
	if m.oneIn(2) {
		spec["outboundTrafficPolicy"] = object{"mode": pick(m, []string{"REGISTRY_ONLY", "ALLOW_ANY"})}
	}
	return m.put(config.Sidecar, networking, namespace, "default", spec)
}

func (m *Mesh) allow() (Edit, bool) {
	namespace := pick(m, []string{"ns0", "istio-system"})
	if m.oneIn(2) {
		return m.remove(config.AuthorizationPolicy, namespace, "allow")
	}
	from := []any{object{"source": object{"principals": []any{fmt.Sprintf("cluster.local/ns/ns0/sa/s%d", m.rand.IntN(4))}}}}
	return m.put(config.AuthorizationPolicy, security, namespace, "allow", object{"rules": []any{object{"from": from}}})
}

func (m *Mesh) bindToGateway() (Edit, bool) {
	name := fmt.Sprintf("edge%d", m.rand.IntN(2))
	if m.oneIn(3) {
		return m.remove(config.VirtualService, "ns1", name)
	}
	s := pick(m, m.services)
	destination := object{"host": m.host(s), "port": object{"number": 80}}
	return m.put(config.VirtualService, networking, "ns1", name, object{
		"hosts": []any{pick(m, []string{"shop.example.com", "*"})}, "gateways": []any{"ns0/g0", "ns0/g1"},
		"http": []any{object{"match": []any{m.match()}, "route": []any{object{"destination": destination}}}},
	})
}

func (m *Mesh) routeTCP() (Edit, bool) {
	s := pick(m, m.services)
	name := "tcp-" + s.name()
	if s.entry || s.number%4 != 3 || m.oneIn(3) {
		return m.remove(config.VirtualService, m.namespace(s.number), name)
	}
	to := pick(m, m.services)
	return m.put(config.VirtualService, networking, m.namespace(s.number), name, object{
		"hosts": []any{m.host(s)},
		"tcp":   []any{object{"route": []any{object{"destination": object{"host": m.host(to), "port": object{"number": 80}}}}}},
	})
}

// shareHost edits a ServiceEntry with a host that other namespaces or a Service have too.
func (m *Mesh) shareHost() (Edit, bool) {
	namespace, name := fmt.Sprintf("ns%d", m.rand.IntN(2)), "shared"
	if m.oneIn(3) {
		return m.remove(config.ServiceEntry, namespace, name)
	}
	host := "shared.example.net"
	if m.oneIn(3) {
		host = m.host(pick(m, m.services))
	}
	return m.put(config.ServiceEntry, networking, namespace, name, object{
		"hosts": []any{host}, "resolution": "STATIC", "location": "MESH_INTERNAL", "addresses": []any{fmt.Sprintf("10.250.0.%d", 1+m.rand.IntN(3))},
		"ports":            []any{object{"number": 80, "name": pick(m, []string{"http", "tcp"}), "protocol": pick(m, []string{"HTTP", "TCP"})}},
		"workloadSelector": object{"labels": object{"app": fmt.Sprintf("s%d", m.rand.IntN(m.o.Services))}},
	})
}

// editAlias edits an ExternalName service: an alias of a service, or of another alias.
func (m *Mesh) editAlias() (Edit, bool) {
	namespace, name := m.namespace(m.rand.IntN(m.o.Namespaces)), fmt.Sprintf("alias%d", m.rand.IntN(2))
	if m.oneIn(3) {
		return m.remove(config.Service, namespace, name)
	}
	to := m.host(pick(m, m.services))
	if m.oneIn(3) {
		to = fmt.Sprintf("alias%d.%s.svc.cluster.local", m.rand.IntN(2), m.namespace(m.rand.IntN(m.o.Namespaces)))
	}
	return m.put(config.Service, "v1", namespace, name, object{"type": "ExternalName", "externalName": to})
}
