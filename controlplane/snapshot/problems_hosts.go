package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// unknownHost tells of a host that a document names and may not see: since nobody has it, or since it is kept from the
// document's namespace.
func (c *checker) unknownHost(r *config.Resource, field, host, so string) {
	full := c.w.resolve(host, r.Namespace)
	for _, svc := range c.w.byHost[c.s.Registry.Target(full)] {
		for known := range svc.WithAliases() {
			if known != svc && known.Hostname != full || known.VisibleTo(r.Namespace) {
				continue
			}
			c.find(config.HiddenHost, r, field, host,
				fmt.Sprintf("%s is not exported to the namespace %s: %s", known.Hostname, r.Namespace, so),
				fmt.Sprintf("add %q to exportTo of %s, which now says %s", r.Namespace, known.Source, strings.Join(known.ExportTo, ", ")))
			return
		}
	}
	c.find(config.UnknownHost, r, field, host, fmt.Sprintf("there is no service %s: %s", full, so), c.nearestHost(host, r.Namespace))
}

// emptySubset tells of a subset that none of the service's endpoints is in, though there are some.
func (c *checker) emptySubset(v *VirtualService, d placed, svc *registry.Service, subset *networking.Subset) {
	instances := c.s.Instances(svc)
	if instances == nil || len(instances.Endpoints) == 0 || len(subset.GetLabels()) == 0 {
		return
	}
	for _, e := range instances.Endpoints {
		if Selects(subset.GetLabels(), e.Labels) {
			return
		}
	}
	c.find(config.SubsetWithoutEndpoints, v.Resource, d.path()+".subset", d.destination.GetSubset(),
		fmt.Sprintf("none of the endpoints of %s has the labels %s: what is routed there is answered with 503", svc.Hostname, labelText(subset.GetLabels())),
		"correct the labels of the subset or of the workloads")
}

// egressPort tells of a listener of a Sidecar for a port that none of the services has which it lets callers see.
func (c *checker) egressPort(r *config.Resource, field string, listener *networking.IstioEgressListener) {
	number := listener.GetPort().GetNumber()
	if number == 0 || r.Namespace == c.w.mesh.GetRootNamespace() { // whose Sidecar is for other namespaces too
		return
	}
	hosts := newEgress(&networking.Sidecar{Egress: []*networking.IstioEgressListener{listener}}, r.Namespace)
	if number == 80 && c.anyRuleHost(r.Namespace, hosts) {
		return
	}
	ports := map[uint32]bool{}
	for _, svc := range c.w.services {
		if !svc.VisibleTo(r.Namespace) || !hosts.seeAny(svc) {
			continue
		}
		for _, p := range svc.Ports {
			ports[p.Number] = ports[p.Number] || p.Protocol != registry.UDP
		}
	}
	if len(ports) == 0 || ports[number] {
		return
	}
	var others []string
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		others = append(others, fmt.Sprint(port))
	}
	c.find(config.UnknownPort, r, field, fmt.Sprint(number), fmt.Sprintf("none of the services that the listener is for has the port %d: it leads to none", number),
		"their ports are "+strings.Join(head(others, 8), ", "))
}

// anyRuleHost says whether a VirtualService gives one of the hosts its routes: a host may exist by those alone, at port 80.
func (c *checker) anyRuleHost(namespace string, hosts egressHosts) bool {
	return slices.ContainsFunc(c.w.virtualServices.byGateway[MeshGateway], func(v *VirtualService) bool {
		return v.VisibleTo(namespace) && slices.ContainsFunc(v.Hosts, func(host string) bool { return hosts.see(v.Namespace, host) })
	})
}

// alias tells of a rule for a name that a service has of an alias: calls by that name follow the rules for the service.
func (c *checker) alias(r *config.Resource, field, written, host string) bool {
	to := c.s.Registry.Target(host)
	if to != host {
		c.warn(r, field, written, fmt.Sprintf("is another name of %s: sidecars follow the rules for that in calls by either name, and not this one", to), "write the rule for "+to)
	}
	return to != host
}
