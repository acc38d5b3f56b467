package meshfuzz

import (
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const networking = "networking.istio.io/v1"

func (m *Mesh) addService() (Edit, bool) {
	s := &service{number: m.next, entry: isEntry(m.next), instances: []int{0, 1}}
	m.next++
	m.services = append(m.services, s)
	if s.entry {
		return m.putEntry(s)
	}
	for i := range s.instances {
		if !m.hasWorkloads(s) {
			m.putWorkload(s, i)
		}
	}
	return m.putService(s)
}

func (m *Mesh) putService(s *service) (Edit, bool) {
	ports := []any{object{"name": "http", "port": 80, "targetPort": m.o.Port}}
	if s.number%4 == 3 {
		ports = append(ports, object{"name": "tcp-more", "port": 3000 + s.number%5, "targetPort": m.o.Port})
	}
	if m.hasWorkloads(s) {
		ports = append(ports, object{"name": "tcp", "port": m.o.TCPPort})
	}
	spec := object{"selector": object{"app": s.name()}, "ports": ports}
	if m.o.ClusterIP != nil && m.isPermanent(s) {
		spec["clusterIP"] = m.o.ClusterIP(s.number)
	}
	return m.put(config.Service, "v1", m.namespace(s.number), s.name(), spec)
}

func (m *Mesh) putWorkload(s *service, instance int) (Edit, bool) {
	spec := m.instance(s, instance)
	if m.oneIn(3) {
		spec["weight"] = 1 + m.rand.IntN(3)
	}
	return m.put(config.WorkloadEntry, networking, m.namespace(s.number), workloadName(s, instance), spec)
}

func workloadName(s *service, instance int) string { return fmt.Sprintf("%s-%d", s.name(), instance) }

func (m *Mesh) instance(s *service, instance int) object {
	return object{
		"address": m.o.Address(s.number, instance), "serviceAccount": s.name(),
		"labels": object{"app": s.name(), "version": fmt.Sprintf("v%d", instance%2), "security.istio.io/tlsMode": m.tlsMode()},
	}
}

// tlsMode returns the value of the label security.istio.io/tlsMode of an instance. Without Disruptive, no instance has
// a sidecar.
func (m *Mesh) tlsMode() string {
	if m.o.Disruptive && m.oneIn(2) {
		return "istio"
	}
	return "disabled"
}

func (m *Mesh) putEntry(s *service) (Edit, bool) {
	var endpoints []any
	for _, i := range s.instances {
		endpoints = append(endpoints, m.instance(s, i))
	}
	spec := object{
		"hosts": []any{m.host(s)}, "resolution": "STATIC", "location": "MESH_INTERNAL", "endpoints": endpoints,
		"ports": []any{object{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": m.o.Port}},
	}
	if m.o.Disruptive && m.oneIn(4) {
		spec["exportTo"] = []any{pick(m, []string{"*", ".", "ns0"})}
	}
	return m.put(config.ServiceEntry, networking, m.namespace(s.number), s.name(), spec)
}

// addOrRemoveService adds or removes a service. The number of services stays near Options.Services.
func (m *Mesh) addOrRemoveService() (Edit, bool) {
	if n := len(m.services); n < m.o.Services || n == m.o.Services && m.oneIn(2) {
		return m.addService()
	}
	i := m.rand.IntN(len(m.services))
	s := m.services[i]
	if m.isPermanent(s) {
		return Edit{}, false
	}
	m.services = slices.Delete(m.services, i, i+1)
	kind := config.Service
	if s.entry {
		kind = config.ServiceEntry
	}
	return m.remove(kind, m.namespace(s.number), s.name())
}

// editInstances adds, removes or changes one instance. It never removes the first two instances, because each subset
// contains one of them.
func (m *Mesh) editInstances() (Edit, bool) {
	s := pick(m, m.services)
	if m.hasWorkloads(s) {
		return Edit{}, false
	}
	instance := m.rand.IntN(4)
	there := slices.Contains(s.instances, instance)
	if gone := there && instance >= 2 && m.oneIn(2); gone {
		s.instances = slices.DeleteFunc(s.instances, func(i int) bool { return i == instance })
		if !s.entry {
			return m.remove(config.WorkloadEntry, m.namespace(s.number), workloadName(s, instance))
		}
	} else if !there {
		s.instances = append(s.instances, instance)
	}
	if s.entry {
		return m.putEntry(s)
	}
	return m.putWorkload(s, instance)
}

// editDestinationRule edits a DestinationRule. It does not remove subsets to which a route refers.
func (m *Mesh) editDestinationRule() (Edit, bool) {
	s := pick(m, m.services)
	namespace := m.namespace(s.number)
	if !m.subsetsUsed(s) {
		if m.oneIn(4) {
			s.subsets = false
			return m.remove(config.DestinationRule, namespace, s.name())
		}
		s.subsets = m.oneIn(2)
	}
	spec := object{"host": m.host(s), "trafficPolicy": m.trafficPolicy()}
	if s.subsets {
		var subsets []any
		for _, v := range []string{"v0", "v1"} {
			subset := object{"name": v, "labels": object{"version": v}}
			if m.oneIn(4) {
				subset["trafficPolicy"] = m.trafficPolicy()
			}
			subsets = append(subsets, subset)
		}
		spec["subsets"] = subsets
	}
	return m.put(config.DestinationRule, networking, namespace, s.name(), spec)
}

func (m *Mesh) trafficPolicy() object {
	p := object{"connectionPool": object{"tcp": object{"connectTimeout": fmt.Sprintf("%ds", 2+m.rand.IntN(9))},
		"http": object{"http2MaxRequests": 1000 + m.rand.IntN(100)}}}
	switch m.rand.IntN(4) {
	case 0:
		p["loadBalancer"] = object{"simple": pick(m, []string{"ROUND_ROBIN", "RANDOM", "LEAST_REQUEST"})}
	case 1:
		p["loadBalancer"] = object{"consistentHash": object{"httpHeaderName": "x-user"}}
	case 2:
		p["portLevelSettings"] = []any{object{"port": object{"number": 80}, "loadBalancer": object{"simple": "ROUND_ROBIN"}}}
	}
	if m.o.Disruptive && m.oneIn(3) {
		p["tls"] = object{"mode": pick(m, []string{"DISABLE", "ISTIO_MUTUAL", "SIMPLE"})}
	}
	return p
}

// subsetsUsed reports whether a route has a subset of the service as its destination.
func (m *Mesh) subsetsUsed(s *service) bool {
	for _, other := range m.services {
		for _, t := range other.routes {
			if t.service == s && t.subset != "" {
				return true
			}
		}
	}
	return false
}
