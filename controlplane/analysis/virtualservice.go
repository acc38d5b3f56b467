package analysis

import (
	"cmp"
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

func (c *snapshotCheck) checkVirtualServices() {
	rules := c.s.VirtualServices()
	byHost := groupByHost(rules)
	for _, v := range rules {
		c.checkHosts(v, byHost)
		if c.isStillClean(v) {
			continue
		}
		found, suggestions := len(c.problems), c.suggestions
		for i, g := range v.Gateways {
			c.checkGatewayReference(v, i, g)
		}
		c.checkRules(withoutDelegates(v))
		if len(c.problems) == found && c.suggestions == suggestions {
			c.recordClean(v)
		}
	}
	for _, r := range c.s.Resources(config.VirtualService) {
		if spec := r.Spec.(*networking.VirtualService); len(spec.GetHosts()) == 0 { // a delegate
			c.checkRules(&snapshot.VirtualService{Resource: r, Spec: spec})
		}
	}
}

// checkRules checks the destinations and delegates of a document's routes.
func (c *snapshotCheck) checkRules(v *snapshot.VirtualService) {
	for d := range snapshot.Destinations(v.Spec) {
		c.checkDestination(v, d)
	}
	c.checkRoutes(v)
	for i, r := range v.Spec.GetHttp() {
		if r.GetDelegate() == nil {
			continue
		}
		at := fmt.Sprintf("spec.http[%d].delegate", i)
		to := c.s.Delegate(v.Resource, r.GetDelegate())
		if to == nil {
			missing := config.MissingObject{Kind: config.VirtualService, Namespace: cmp.Or(r.GetDelegate().GetNamespace(), v.Namespace), Name: r.GetDelegate().GetName(), Effect: "the route is left out"}
			c.reportMissing(config.UnknownDelegate, v.Resource, at, r.GetDelegate().GetName(),
				"no VirtualService with this name that can be a delegate is visible in this namespace", missing, "add the delegate (a VirtualService without hosts) or export it, or correct its name and namespace")
			continue
		}
		for j, own := range to.Spec.(*networking.VirtualService).GetHttp() {
			if _, possible := snapshot.MergeMatches(r.GetMatch(), own.GetMatch()); !possible {
				c.reportWarning(config.UnreachableRoute, v.Resource, at, r.GetDelegate().GetName(),
					fmt.Sprintf("spec.http[%d] of the delegate is left out: its match cannot be combined with the match of this route", j),
					"make the delegate match what this route matches: a path that begins with its prefix, and the same values of all other conditions")
			}
		}
	}
}

// withoutDelegates returns a copy of the VirtualService that contains only the routes of its own document, not the
// routes of its delegates. Field paths in findings then refer to that document.
func withoutDelegates(v *snapshot.VirtualService) *snapshot.VirtualService {
	written := *v
	written.Spec = v.Resource.Spec.(*networking.VirtualService)
	return &written
}

// groupByHost returns the rules for sidecars by host, oldest first.
func groupByHost(rules []*snapshot.VirtualService) map[string][]*snapshot.VirtualService {
	byHost := make(map[string][]*snapshot.VirtualService, len(rules))
	for _, v := range rules {
		if !v.IsForGateway(snapshot.MeshGateway) {
			continue
		}
		for _, host := range v.Hosts {
			byHost[host] = append(byHost[host], v)
		}
	}
	return byHost
}

// checkHosts reports unknown hosts. It also reports hosts for which another rule takes precedence, because sidecars use
// only one rule for each host.
func (c *snapshotCheck) checkHosts(v *snapshot.VirtualService, byHost map[string][]*snapshot.VirtualService) {
	if !v.IsForGateway(snapshot.MeshGateway) {
		return
	}
	for i, host := range v.Hosts {
		written := v.Spec.GetHosts()[i]
		if first := snapshot.FindShadowing(v, byHost[host]); first != nil {
			c.reportWarning(config.HostConflict, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written,
				fmt.Sprintf("sidecars use %s for this host, because it %s; this VirtualService has no effect on sidecars", describeResource(first.Resource), snapshot.ExplainRulePrecedence(first, v)),
				"put all routes of the host into one VirtualService")
			continue
		}
		if c.checkAlias(v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, host) {
			continue
		}
		if !strings.Contains(written, ".") && written != "*" && c.lookupService(written, v.Namespace) == nil {
			c.reportMissing(config.UnknownHost, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, "there is no service "+host, config.MissingObject{Host: host}, c.suggestHost(written, v.Namespace))
		}
	}
}

func (c *snapshotCheck) checkGatewayReference(v *snapshot.VirtualService, i int, gateway string) {
	if gateway == snapshot.MeshGateway {
		return
	}
	var names []string
	for _, g := range c.s.AllGateways() {
		if g.FullName() == gateway {
			c.checkGatewayHosts(v, i, g)
			return
		}
		names = append(names, g.FullName())
		if g.Namespace == v.Namespace {
			names = append(names, g.Name)
		}
	}
	written := v.Spec.GetGateways()[i]
	remedy := fmt.Sprintf("add the Gateway %s, or correct the name", gateway)
	if n := c.suggestName(written, names); n != "" {
		remedy = fmt.Sprintf("did you mean %q?", n)
	}
	namespace, name, _ := strings.Cut(gateway, "/")
	missing := config.MissingObject{Kind: config.Gateway, Namespace: namespace, Name: name, Effect: "the routes do not apply to it"}
	c.reportMissing(config.UnknownGateway, v.Resource, fmt.Sprintf("spec.gateways[%d]", i), written, "there is no Gateway "+gateway, missing, remedy)
}

// describeFailure describes what happens to the traffic that is routed to a destination without endpoints.
func describeFailure(d snapshot.DestinationRef) string {
	switch {
	case d.IsMirror():
		return "the copies of requests are dropped"
	case d.IsHTTP():
		return "requests to it are answered with 503"
	}
	return "connections to it are closed"
}

func (c *snapshotCheck) checkDestination(v *snapshot.VirtualService, d snapshot.DestinationRef) {
	host := d.Destination.GetHost()
	svc := c.lookupService(host, v.Namespace)
	if svc == nil {
		c.reportUnknownHost(v.Resource, d.Path()+".host", host, describeFailure(d))
		return
	}
	c.checkPort(v, d, svc)
	c.checkSubset(v, d, svc)
}

func (c *snapshotCheck) checkPort(v *snapshot.VirtualService, d snapshot.DestinationRef, svc *registry.Service) {
	number := d.Destination.GetPort().GetNumber()
	if number == 0 {
		c.checkImplicitPort(v, d, svc)
		return
	}
	if _, ok := svc.Port(number); ok {
		return
	}
	c.reportWarning(config.UnknownPort, v.Resource, d.Path()+".port.number", fmt.Sprint(number), fmt.Sprintf("%s has no port %d: %s", svc.Hostname, number, describeFailure(d)),
		"use one of its ports: "+phrase.List(portNumbers(svc)))
}

func (c *snapshotCheck) checkSubset(v *snapshot.VirtualService, d snapshot.DestinationRef, svc *registry.Service) {
	name := d.Destination.GetSubset()
	if name == "" {
		return
	}
	rule := c.s.DestinationRule(v.Namespace, svc)
	if subset := rule.Subset(name); subset != nil {
		c.checkEmptySubset(v, d, svc, subset)
		return
	}
	for _, some := range c.selectiveRules(v.Namespace) {
		if snapshot.MatchHost(some.Host, svc.Hostname) && some.Subset(name) != nil {
			return // some callers see the subset: the rule may be only for them
		}
	}
	remedy := fmt.Sprintf("add the subset to a DestinationRule for %s", svc.Hostname)
	if rule != nil {
		var names []string
		for _, s := range rule.Subsets {
			names = append(names, s.GetName())
		}
		if n := c.suggestName(name, names); n != "" {
			remedy = fmt.Sprintf("did you mean %q?", n)
		} else if len(names) > 0 {
			remedy = fmt.Sprintf("use one of the subsets of %s: %s", rule.From[0].Key, phrase.List(names))
		}
	}
	missing := config.MissingObject{Kind: config.DestinationRule, Host: svc.Hostname, Effect: describeFailure(d)}
	c.reportMissing(config.UnknownSubset, v.Resource, d.Path()+".subset", name, svc.Hostname+" has no such subset", missing, remedy)
}

// selectiveRules returns the DestinationRules of a namespace that have a workload selector.
func (c *snapshotCheck) selectiveRules(namespace string) []*snapshot.DestinationRule {
	if c.selective == nil {
		c.selective = map[string][]*snapshot.DestinationRule{}
		for _, d := range c.s.DestinationRules() {
			if d.IsSelective() {
				c.selective[d.Namespace] = append(c.selective[d.Namespace], d)
			}
		}
	}
	return c.selective[namespace]
}
