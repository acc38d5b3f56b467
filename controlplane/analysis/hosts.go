package analysis

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// reportUnknownHost reports that the host in a field of a document does not exist or is not exported to the document's
// namespace. effect describes the consequence.
func (c *snapshotCheck) reportUnknownHost(r *config.Resource, field, host, effect string) {
	full := c.s.Registry.ResolveHostname(host, r.Namespace)
	for _, svc := range c.s.Registry.ByHostname(c.s.Registry.Target(full)) {
		for known := range svc.WithAliases() {
			if known != svc && known.Hostname != full || known.VisibleTo(r.Namespace) {
				continue
			}
			c.reportWarning(config.HiddenHost, r, field, host,
				fmt.Sprintf("%s is not exported to the namespace %s: %s", known.Hostname, r.Namespace, effect),
				fmt.Sprintf("add %q to exportTo of %s, which is now %s", r.Namespace, known.Source, phrase.List(known.ExportTo)))
			return
		}
	}
	c.reportMissing(config.UnknownHost, r, field, host, "there is no service "+full, config.MissingObject{Host: full, Effect: effect}, c.suggestHost(host, r.Namespace))
}

// checkEmptySubset reports a subset that matches no endpoints of a service that has endpoints.
func (c *snapshotCheck) checkEmptySubset(v *snapshot.VirtualService, d snapshot.DestinationRef, svc *registry.Service, subset *networking.Subset) {
	instances := c.s.Instances(svc)
	if instances == nil || len(instances.Endpoints) == 0 || len(subset.GetLabels()) == 0 {
		return
	}
	for _, e := range instances.Endpoints {
		if snapshot.Selects(subset.GetLabels(), e.Labels) {
			return
		}
	}
	c.reportWarning(config.SubsetWithoutEndpoints, v.Resource, d.Path()+".subset", d.Destination.GetSubset(),
		fmt.Sprintf("none of the endpoints of %s has the labels %s: %s", svc.Hostname, config.FormatLabels(subset.GetLabels()), describeFailure(d)),
		"correct the labels of the subset or of the workloads")
}

// checkEgressPort reports an egress listener of a Sidecar if none of the services that are visible through it has its
// port.
func (c *snapshotCheck) checkEgressPort(r *config.Resource, field string, listener *networking.IstioEgressListener) {
	number := listener.GetPort().GetNumber()
	if number == 0 || r.Namespace == c.s.Mesh.GetRootNamespace() { // its Sidecar applies to other namespaces, too
		return
	}
	hosts := snapshot.NewEgressHosts(&networking.Sidecar{Egress: []*networking.IstioEgressListener{listener}}, r.Namespace)
	if number == 80 && c.anyRuleHost(r.Namespace, hosts) {
		return
	}
	ports := map[uint32]bool{}
	for _, svc := range c.s.Registry.Services {
		if !svc.VisibleTo(r.Namespace) || !hosts.ContainsService(svc) {
			continue
		}
		for _, p := range svc.Ports {
			ports[p.Number] = ports[p.Number] || p.Protocol != registry.UDP
		}
	}
	if len(ports) == 0 || ports[number] {
		return
	}
	var known []string
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		known = append(known, fmt.Sprint(port))
	}
	c.reportWarning(config.UnknownPort, r, field, fmt.Sprint(number), fmt.Sprintf("none of the services in the listener's hosts has the port %d, so the listener has no effect", number),
		"use one of the services' ports: "+phrase.ListFirst(known, 8))
}

// anyRuleHost reports whether a VirtualService that is visible to namespace has one of the hosts. Such a host exists on
// port 80 even without a service.
func (c *snapshotCheck) anyRuleHost(namespace string, hosts snapshot.EgressHosts) bool {
	return slices.ContainsFunc(c.s.VirtualServices(), func(v *snapshot.VirtualService) bool {
		return v.IsForGateway(snapshot.MeshGateway) && v.VisibleTo(namespace) && slices.ContainsFunc(v.Hosts, func(host string) bool { return hosts.Contains(v.Namespace, host) })
	})
}

// checkAlias reports a rule whose host is an alias of a service, and returns true in this case. The rule has no effect,
// because calls by the alias use the rules of the service.
func (c *snapshotCheck) checkAlias(r *config.Resource, field, written, host string) bool {
	to := c.s.Registry.Target(host)
	if to != host {
		c.reportNoEffect(r, field, written, fmt.Sprintf("the host is an alias of %s: for calls by either name, sidecars use the rules of that service and ignore this one", to), "write the rule for "+to)
	}
	return to != host
}
