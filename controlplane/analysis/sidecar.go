package analysis

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

func (c *snapshotCheck) checkSidecars() {
	for _, r := range c.s.Resources(config.Sidecar) {
		spec := r.Spec.(*networking.Sidecar)
		c.checkSidecarEndpoints(r, spec)
		for i, listener := range spec.GetIngress() {
			at := fmt.Sprintf("spec.ingress[%d].tls", i)
			c.checkServerCredentials(r, at, listener.GetTls())
			if listener.GetTls() != nil {
				c.checkOwnTLS(r, at, spec.GetWorkloadSelector().GetLabels(), listener.GetPort().GetNumber())
			}
		}
		for i, listener := range spec.GetEgress() {
			for j, host := range listener.GetHosts() {
				c.checkEgressHost(r, fmt.Sprintf("spec.egress[%d].hosts[%d]", i, j), host)
			}
			c.checkEgressPort(r, fmt.Sprintf("spec.egress[%d].port.number", i), listener)
		}
	}
}

// checkOwnTLS reports TLS settings for a port of a Sidecar if no selected workload disables mutual TLS for the port.
// The settings then have no effect.
func (c *snapshotCheck) checkOwnTLS(r *config.Resource, field string, labels map[string]string, port uint32) {
	mode := c.s.MTLSMode(r.Namespace, labels, port)
	found, _ := c.s.Registry.Workloads(r.Namespace, labels)
	for _, w := range found {
		if mode == snapshot.Disable {
			break
		}
		mode = c.s.MTLSMode(r.Namespace, registry.WorkloadLabels(w), port)
	}
	if mode != snapshot.Disable {
		c.reportNoEffect(r, field, "", fmt.Sprintf("the port accepts the mesh's mutual TLS (%s), so these TLS settings have no effect", mode),
			fmt.Sprintf("set portLevelMtls of the workloads' PeerAuthentication to DISABLE for port %d", port))
	}
}

// checkEgressHost reports unknown hosts in a Sidecar. A Sidecar in the root namespace applies to the workloads of all
// namespaces, and "." stands for the namespace of each workload. In such a Sidecar, a host is therefore known if it is
// visible to any namespace.
func (c *snapshotCheck) checkEgressHost(r *config.Resource, field, host string) {
	ns, pattern, _ := strings.Cut(host, "/")
	if strings.HasPrefix(pattern, "*") {
		return
	}
	ns = strings.TrimPrefix(ns, "~")
	if ns == "" {
		ns = "*"
	}
	isMeshWide := r.Namespace == c.s.Mesh.GetRootNamespace()
	seen := ns + "/" + pattern
	if isMeshWide && ns == "." {
		seen = "*/" + pattern
	}
	egress := snapshot.NewEgressHosts(&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{seen}}}}, r.Namespace)
	for _, svc := range c.s.Registry.Services {
		if (isMeshWide || svc.VisibleTo(r.Namespace)) && egress.ContainsService(svc) {
			return
		}
	}
	if c.anyRuleHost(r.Namespace, egress) { // callers use the rule's host
		return
	}
	c.reportMissing(config.UnknownHost, r, field, host, "there is no service with this host", config.MissingObject{Host: pattern}, c.suggestHost(pattern, r.Namespace))
}
