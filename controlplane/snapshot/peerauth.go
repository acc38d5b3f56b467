package snapshot

import (
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
	mesh      Mode
	namespace map[string]Mode
	workload  map[string][]*security.PeerAuthentication // by namespace, the oldest first
}

func newPeerAuth(resources []*config.Resource, rootNamespace string) *peerAuth {
	p := &peerAuth{
		mesh:      Permissive,
		namespace: map[string]Mode{},
		workload:  map[string][]*security.PeerAuthentication{},
	}
	meshSet := false
	for _, r := range oldestFirst(resources) {
		spec := r.Spec.(*security.PeerAuthentication)
		mode := spec.GetMtls().GetMode()
		switch {
		case len(spec.GetSelector().GetMatchLabels()) > 0:
			p.workload[r.Namespace] = append(p.workload[r.Namespace], spec)
		case r.Namespace == rootNamespace:
			if !meshSet && mode != security.PeerAuthentication_MutualTLS_UNSET {
				p.mesh, meshSet = mode, true
			}
		default:
			if _, ok := p.namespace[r.Namespace]; !ok && mode != security.PeerAuthentication_MutualTLS_UNSET {
				p.namespace[r.Namespace] = mode
			}
		}
	}
	return p
}

// mode is what a port of a workload accepts: what is said of the port goes before what is said of the workload, that
// before the namespace, and that before the mesh.
func (p *peerAuth) mode(namespace string, labels map[string]string, port uint32) Mode {
	for _, spec := range p.workload[namespace] {
		if !Selects(spec.GetSelector().GetMatchLabels(), labels) {
			continue
		}
		if m := spec.GetPortLevelMtls()[port].GetMode(); m != security.PeerAuthentication_MutualTLS_UNSET {
			return m
		}
		if m := spec.GetMtls().GetMode(); m != security.PeerAuthentication_MutualTLS_UNSET {
			return m
		}
		break // the oldest that selects the workload is its policy; what it leaves open is inherited
	}
	if m, ok := p.namespace[namespace]; ok {
		return m
	}
	return p.mesh
}

// ports are those for which the workload's own policy has a mode, sorted.
func (p *peerAuth) ports(namespace string, labels map[string]string) []uint32 {
	for _, spec := range p.workload[namespace] {
		if Selects(spec.GetSelector().GetMatchLabels(), labels) {
			return slices.Sorted(maps.Keys(spec.GetPortLevelMtls()))
		}
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
