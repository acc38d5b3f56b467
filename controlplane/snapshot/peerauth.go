package snapshot

import (
	"cmp"
	"maps"
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Mode is the mutual TLS mode of a workload's port.
type Mode = security.PeerAuthentication_MutualTLS_Mode

// The modes that can be effective. UNSET is never effective.
const (
	Permissive = security.PeerAuthentication_MutualTLS_PERMISSIVE
	Strict     = security.PeerAuthentication_MutualTLS_STRICT
	Disable    = security.PeerAuthentication_MutualTLS_DISABLE
)

// peerAuth indexes all PeerAuthentications. If several documents have the same scope (mesh, namespace or workload), the
// oldest takes precedence.
type peerAuth struct {
	mesh      *config.Resource            // nil if no PeerAuthentication of the mesh sets a mode
	namespace map[string]*config.Resource // only documents that set a mode
	workload  map[string][]*config.Resource
}

func newPeerAuth(resources []*config.Resource, rootNamespace string) *peerAuth {
	p := &peerAuth{namespace: map[string]*config.Resource{}, workload: map[string][]*config.Resource{}}
	for _, r := range config.SortByAge(resources) {
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

// mode returns the mutual TLS mode of a workload's port.
func (p *peerAuth) mode(namespace string, labels map[string]string, port uint32) Mode {
	mode, _ := p.effectiveMode(namespace, labels, port)
	return mode
}

// effectiveMode returns the mode of a workload's port and the document that sets it. The document is nil if the mode is
// the default. The precedence is port, workload, namespace, mesh.
func (p *peerAuth) effectiveMode(namespace string, labels map[string]string, port uint32) (Mode, *config.Resource) {
	if r := p.forWorkload(namespace, labels); r != nil {
		// Unset modes are inherited from the next scope.
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

// forWorkload returns the oldest PeerAuthentication that selects a workload by its labels, or nil.
func (p *peerAuth) forWorkload(namespace string, labels map[string]string) *config.Resource {
	for _, r := range p.workload[namespace] {
		if Selects(peerSpec(r).GetSelector().GetMatchLabels(), labels) {
			return r
		}
	}
	return nil
}

// ports returns the sorted ports for which a PeerAuthentication that selects the workload sets a mode.
func (p *peerAuth) ports(namespace string, labels map[string]string) []uint32 {
	if r := p.forWorkload(namespace, labels); r != nil {
		return slices.Sorted(maps.Keys(peerSpec(r).GetPortLevelMtls()))
	}
	return nil
}

// MTLSPorts returns the sorted ports for which a PeerAuthentication that selects the workload sets a mode. Some of
// these ports may not belong to a service.
func (s *Snapshot) MTLSPorts(namespace string, labels map[string]string) []uint32 {
	return s.peerAuth.ports(namespace, labels)
}

// MTLSMode returns the mutual TLS mode of a workload's port. port is the target port, not the service's port.
func (s *Snapshot) MTLSMode(namespace string, labels map[string]string, port uint32) Mode {
	return s.peerAuth.mode(namespace, labels, port)
}

// PeerAuthentication returns the document that sets MTLSMode. It returns nil if the mode is the default.
func (s *Snapshot) PeerAuthentication(namespace string, labels map[string]string, port uint32) *config.Resource {
	_, by := s.peerAuth.effectiveMode(namespace, labels, port)
	return by
}
