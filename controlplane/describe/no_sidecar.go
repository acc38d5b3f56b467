package describe

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// WithoutSidecar returns the description of a workload that has no sidecar. entry is its WorkloadEntry.
func WithoutSidecar(s *snapshot.Snapshot, entry *config.Resource) Description {
	spec := entry.Spec.(*networking.WorkloadEntry)
	d := Description{
		Workload: entry.Name, Namespace: entry.Namespace, Type: "no sidecar", Address: spec.GetAddress(), Labels: redact.Labels(spec.GetLabels()),
		Access: []string{"all clients that reach its address, in plaintext: policies of the mesh are not enforced without a sidecar"},
		Scope: []string{
			"no rules of the mesh apply to its own requests",
			"its requests are plaintext without an identity: workloads that require mutual TLS (STRICT) refuse them",
		},
	}
	p := &translate.Proxy{Type: translate.Sidecar, Namespace: entry.Namespace, Labels: spec.GetLabels(), PodPorts: spec.GetPorts()}
	d.addInbound(s, p, s.Scope(p.Namespace, p.Labels))
	for n := range d.Inbound {
		d.Inbound[n].MTLS, d.Inbound[n].By, d.Inbound[n].Endpoint = "plaintext only (no sidecar)", "", ""
	}
	return d
}
