package snapshot

import (
	"cmp"
	"maps"
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Mode is what a workload's port accepts.
type Mode = security.PeerAuthentication_MutualTLS_Mode

// The effective modes. UNSET never is one.
const (
	Permissive = security.PeerAuthentication_MutualTLS_PERMISSIVE
	Strict     = security.PeerAuthentication_MutualTLS_STRICT
	Disable    = security.PeerAuthentication_MutualTLS_DISABLE
)

// peerAuth is all PeerAuthentications, indexed. The oldest of a scope wins.
type peerAuth struct {
	mesh      *config.Resource            // nil when none has a mode
	namespace map[string]*config.Resource // those that have a mode
	workload  map[string][]*config.Resource
}

func newPeerAuth(resources []*config.Resource, rootNamespace string) *peerAuth {
	p := &peerAuth{namespace: map[string]*config.Resource{}, workload: map[string][]*config.Resource{}}
	for _, r := range oldestFirst(resources) {
		spec := peerSpec(r)
		set := spec.GetMtls().GetMode() != security.PeerAuthentication_MutualTLS_UNSET
		switch {
		case len(spec.GetSelector().GetMatchLabels()) > 0:
			p.workload[r.Namespace] = append(p.workload[r.Namespace], r)
		case set && r.Namespace == rootNamespace:
			p.mesh = cmp.Or(p.mesh, r)
		case set:
			p.namespace[r.Namespace] = cmp.Or(p.namespace[r.Namespace], r)
		}
	}
	return p
}

func peerSpec(r *config.Resource) *security.PeerAuthentication {
	return r.Spec.(*security.PeerAuthentication)
}

// mode is what a port of a workload accepts.
func (p *peerAuth) mode(namespace string, labels map[string]string, port uint32) Mode {
	mode, _ := p.decide(namespace, labels, port)
	return mode
}

// decide is that, and the document that says so, which is nil when none does: what is said of the port goes before what is
// said of the workload, that before the namespace, and that before the mesh.
func (p *peerAuth) decide(namespace string, labels map[string]string, port uint32) (Mode, *config.Resource) {
	if r := p.of(namespace, labels); r != nil {
		// What it leaves open is inherited.
		if m := peerSpec(r).GetPortLevelMtls()[port].GetMode(); m != security.PeerAuthentication_MutualTLS_UNSET {
			return m, r
		}
		if m := peerSpec(r).GetMtls().GetMode(); m != security.PeerAuthentication_MutualTLS_UNSET {
			return m, r
		}
	}
	if r := cmp.Or(p.namespace[namespace], p.mesh); r != nil {
		return peerSpec(r).GetMtls().GetMode(), r
	}
	return Permissive, nil
}

// of is the policy of a workload's own: the oldest that selects it.
func (p *peerAuth) of(namespace string, labels map[string]string) *config.Resource {
	for _, r := range p.workload[namespace] {
		if Selects(peerSpec(r).GetSelector().GetMatchLabels(), labels) {
			return r
		}
	}
	return nil
}

// ports are those for which the workload's own policy has a mode, sorted.
func (p *peerAuth) ports(namespace string, labels map[string]string) []uint32 {
	if r := p.of(namespace, labels); r != nil {
		return slices.Sorted(maps.Keys(peerSpec(r).GetPortLevelMtls()))
	}
	return nil
}

// MTLSPorts are the ports of a workload with these labels that a policy names, sorted; services need not list them.
func (s *Snapshot) MTLSPorts(namespace string, labels map[string]string) []uint32 {
	return s.peerAuth.ports(namespace, labels)
}

// MTLSMode is what the port (the workload's, not the service's) of a workload with these labels accepts.
func (s *Snapshot) MTLSMode(namespace string, labels map[string]string, port uint32) Mode {
	return s.peerAuth.mode(namespace, labels, port)
}

// PeerAuthentication is the document that decides that; nil when none does.
func (s *Snapshot) PeerAuthentication(namespace string, labels map[string]string, port uint32) *config.Resource {
	_, by := s.peerAuth.decide(namespace, labels, port)
	return by
}
