package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Problems are the references that lead nowhere and the parts that have no effect, in a stable order: the registry's
// first. They are found when they are first asked for; patches that are left out, when resources are made that they are for.
func (s *Snapshot) Problems() []config.Problem {
	s.checked.once.Do(func() {
		c := checker{s: s, w: s.world, suggestions: maxSuggestions, before: s.checked.before, sound: newSoundness(s)}
		c.virtualServices()
		c.destinationRules()
		c.gateways()
		c.sidecars()
		c.policies()
		c.ruleConflicts()
		c.gatewayConflicts()
		c.sharedAddresses()
		c.portProtocols()
		c.selectors()
		c.withoutSidecar()
		c.peerPorts()
		c.telemetries()
		c.pullSecrets()
		slices.SortStableFunc(c.problems, byPlace)
		s.checked.problems = c.problems
		s.checked.after.Store(c.sound)
	})
	ended := checker{s: s}
	ended.certificates(time.Now()) // which no document has to change for
	return slices.Concat(s.Registry.Problems, s.checked.problems, ended.problems, s.notedProblems())
}

// check is the problems of the rules and policies, once somebody asked for them.
type check struct {
	once     sync.Once
	problems []config.Problem
	before   *soundness // of the last snapshot before that was checked; nil for none
	after    atomic.Pointer[soundness]
}

// next is that of the snapshot after, of which c may be nil.
func (c *check) next() *check {
	switch {
	case c == nil:
		return &check{}
	case c.after.Load() != nil:
		return &check{before: c.after.Load()}
	}
	return &check{before: c.before}
}

// maxSuggestions bounds the search for names that someone may have meant: where more is wrong, it is not the spelling.
const maxSuggestions = 50

// checker collects problems.
type checker struct {
	s        *Snapshot
	w        *world
	problems []config.Problem
	// suggestions is how many names may still be searched for.
	suggestions int
	// before is what was found to be sound last time, sound what is found so now.
	before, sound *soundness
	differs       *difference // between the two; made when it is first asked for
	// namespaces are those that something is known of; filled when first asked for.
	namespaces map[string]bool
	// byLabel are the services that select workloads, by each of the labels; filled when first asked for.
	byLabel map[wanted][]*registry.Service
	// at are the namespaces of the workloads that the Gateway selects which is looked at, as far as any are known.
	at []string
}

// byPlace orders problems as their authors read them.
func byPlace(a, b config.Problem) int {
	return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
}

// nearest gives what was probably meant; "" when nothing is like it.
func (c *checker) nearest(written string, names []string) string {
	if c.suggestions == 0 {
		return ""
	}
	c.suggestions--
	return nearestHost(written, names)
}

// warn is for what a document says and is not done as written; what has a code of its own is told by find.
func (c *checker) warn(r *config.Resource, field, value, message, remedy string) {
	c.find(config.NoEffect, r, field, value, message, remedy)
}

func (c *checker) find(code config.Code, r *config.Resource, field, value, message, remedy string) {
	c.tell(code, config.Warning, r, field, value, message, remedy)
}

// tell records a finding, unless the document accepts it.
func (c *checker) tell(code config.Code, severity config.Severity, r *config.Resource, field, value, message, remedy string) {
	p := config.Problem{
		Code: code, Severity: severity, Key: r.Key, At: r.Place(field), Field: field, Value: value, Message: message, Remedy: remedy,
	}
	if !config.Suppresses(r.Annotations, p) {
		c.problems = append(c.problems, p)
	}
}

// target is the full name of the service that a document of the namespace means by a host, which may be an alias.
func (c *checker) target(host, namespace string) string {
	return c.s.Registry.Target(c.w.resolve(host, namespace))
}

// service finds what a document of the namespace means by a host; nil when it means nothing that it may see.
func (c *checker) service(host, namespace string) *registry.Service {
	full := c.w.resolve(host, namespace)
	for _, svc := range c.w.byHost[c.s.Registry.Target(full)] {
		if knownAs(svc, full, namespace) {
			return svc
		}
	}
	return nil
}

// nearestHost gives the remedy for a host that does not exist.
func (c *checker) nearestHost(host, namespace string) string {
	var names []string
	for _, svc := range c.w.services {
		if !svc.VisibleTo(namespace) {
			continue
		}
		for known := range svc.WithAliases() {
			names = append(names, known.Hostname)
			if known.Kubernetes && known.Namespace == namespace {
				names = append(names, known.Name)
			}
		}
	}
	if n := c.nearest(host, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "add a Service or a ServiceEntry of this name, or correct the host"
}

func (c *checker) virtualServices() {
	taken := make(map[hostOf]*VirtualService, len(c.w.virtualServices.all))
	for _, v := range c.w.virtualServices.all {
		c.hosts(v, taken)
		if c.stillSound(v) {
			continue
		}
		found, suggestions := len(c.problems), c.suggestions
		for i, g := range v.Gateways {
			c.gatewayExists(v, i, g)
		}
		c.rules(v.asWritten())
		if len(c.problems) == found && c.suggestions == suggestions {
			c.isSound(v)
		}
	}
	for _, r := range c.w.virtualServices.others.byKey {
		c.rules(&VirtualService{Resource: r, Spec: r.Spec.(*networking.VirtualService)})
	}
}

// rules checks where a document's routes lead.
func (c *checker) rules(v *VirtualService) {
	for d := range destinations(v.Spec) {
		c.destination(v, d)
	}
	c.routes(v)
	for i, r := range v.Spec.GetHttp() {
		if r.GetDelegate() == nil {
			continue
		}
		at := fmt.Sprintf("spec.http[%d].delegate", i)
		to := c.w.virtualServices.others.find(v.Resource, r.GetDelegate())
		if to == nil {
			c.find(config.UnknownDelegate, v.Resource, at, r.GetDelegate().GetName(),
				"there is no such VirtualService without hosts, or it is not exported to here: the route is left out", "add it, or correct the name and namespace")
			continue
		}
		for j, own := range to.Spec.(*networking.VirtualService).GetHttp() {
			if _, possible := joinMatches(r.GetMatch(), own.GetMatch()); !possible {
				c.find(config.UnreachableRoute, v.Resource, at, r.GetDelegate().GetName(),
					fmt.Sprintf("spec.http[%d] of the delegate is left out: its match cannot be joined with that of this route", j),
					"let the delegate ask for what this route takes: a path that begins with its prefix, the same value of what both name")
			}
		}
	}
}

// asWritten is the rule without what its delegates add, so that places in it are those of its document.
func (v *VirtualService) asWritten() *VirtualService {
	own := *v
	own.Spec = v.Resource.Spec.(*networking.VirtualService)
	return &own
}

// hosts warns of names that nothing answers to, and of a second rule for a name, which sidecars do not merge.
func (c *checker) hosts(v *VirtualService, taken map[hostOf]*VirtualService) {
	if !v.For(MeshGateway) {
		return
	}
	exported := canonicalExport(v.exportTo)
	for i, host := range v.Hosts {
		written, of := v.Spec.GetHosts()[i], hostOf{host, exported}
		if first := taken[of]; first != nil && first != v {
			c.find(config.HostTaken, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written,
				fmt.Sprintf("sidecars follow the older %s for this host; this one has no effect on them", first.Key),
				"put all routes of the host into one VirtualService")
			continue
		}
		taken[of] = v
		if c.alias(v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, host) {
			continue
		}
		if !strings.Contains(written, ".") && written != "*" && c.service(written, v.Namespace) == nil {
			c.find(config.UnknownHost, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, fmt.Sprintf("there is no service %s", host), c.nearestHost(written, v.Namespace))
		}
	}
}

// hostOf is a host of VirtualServices that are exported alike.
type hostOf struct{ host, exportTo string }

func (c *checker) gatewayExists(v *VirtualService, i int, gateway string) {
	if gateway == MeshGateway {
		return
	}
	var names []string
	for _, g := range c.s.gateways {
		if g.FullName() == gateway {
			c.gatewayHosts(v, i, g)
			return
		}
		names = append(names, g.FullName())
		if g.Namespace == v.Namespace {
			names = append(names, g.Name)
		}
	}
	written := v.Spec.GetGateways()[i]
	remedy := fmt.Sprintf("add the Gateway %s, or correct the name", gateway)
	if n := c.nearest(written, names); n != "" {
		remedy = fmt.Sprintf("did you mean %q?", n)
	}
	c.find(config.UnknownGateway, v.Resource, fmt.Sprintf("spec.gateways[%d]", i), written, fmt.Sprintf("there is no Gateway %s: the routes do not apply to it", gateway), remedy)
}

func (c *checker) destination(v *VirtualService, d placed) {
	host := d.destination.GetHost()
	svc := c.service(host, v.Namespace)
	if svc == nil {
		c.unknownHost(v.Resource, d.path()+".host", host, "what is routed there is answered with 503")
		return
	}
	c.port(v, d, svc)
	c.subset(v, d, svc)
}

func (c *checker) port(v *VirtualService, d placed, svc *registry.Service) {
	number := d.destination.GetPort().GetNumber()
	if number == 0 {
		return
	}
	if _, ok := svc.Port(number); ok {
		return
	}
	ports := make([]string, len(svc.Ports))
	for i, p := range svc.Ports {
		ports[i] = fmt.Sprint(p.Number)
	}
	c.find(config.UnknownPort, v.Resource, d.path()+".port.number", fmt.Sprint(number), fmt.Sprintf("%s has no port %d: what is routed there is answered with 503", svc.Hostname, number),
		"its ports are "+strings.Join(ports, ", "))
}

func (c *checker) subset(v *VirtualService, d placed, svc *registry.Service) {
	name := d.destination.GetSubset()
	if name == "" {
		return
	}
	rule := c.w.destinationRules.lookup(v.Namespace, svc.Hostname, svc.Namespace)
	if subset := rule.Subset(name); subset != nil {
		c.emptySubset(v, d, svc, subset)
		return
	}
	for _, some := range c.w.destinationRules.of(v.Namespace).selective {
		if MatchHost(some.Host, svc.Hostname) && some.Subset(name) != nil {
			return // some callers have it: the rule may be for them only
		}
	}
	remedy := fmt.Sprintf("add the subset to a DestinationRule for %s", svc.Hostname)
	if rule != nil {
		var names []string
		for _, s := range rule.Subsets {
			names = append(names, s.GetName())
		}
		if n := c.nearest(name, names); n != "" {
			remedy = fmt.Sprintf("did you mean %q?", n)
		} else if len(names) > 0 {
			remedy = fmt.Sprintf("%s has the subsets %s", rule.From[0].Key, strings.Join(names, ", "))
		}
	}
	c.find(config.UnknownSubset, v.Resource, d.path()+".subset", name, fmt.Sprintf("%s has no such subset: what is routed there is answered with 503", svc.Hostname), remedy)
}

func (c *checker) destinationRules() {
	for _, r := range c.s.resources[config.DestinationRule] {
		spec := r.Spec.(*networking.DestinationRule)
		host := c.w.resolve(spec.GetHost(), r.Namespace)
		if c.alias(r, "spec.host", spec.GetHost(), host) {
			continue
		}
		if !c.anyService(host, r.Namespace) {
			c.unknownHost(r, "spec.host", spec.GetHost(), "the rule has no effect")
		}
		c.callers(r)
		c.proxyHeaders(r)
		c.clientCredentials(r, "spec.trafficPolicy", spec.GetTrafficPolicy())
		c.outliers(r, "spec.trafficPolicy", spec.GetTrafficPolicy(), nil)
		for i, s := range spec.GetSubsets() {
			at := fmt.Sprintf("spec.subsets[%d].trafficPolicy", i)
			c.clientCredentials(r, at, s.GetTrafficPolicy())
			c.outliers(r, at, s.GetTrafficPolicy(), s.GetLabels())
		}
	}
}

// outliers tells of outlier detection that leaves no endpoint out, since all the endpoints there are do not make one by the
// percentage that may be: Envoy takes it for a limit, and Istio's 10 % is for ten endpoints or more.
func (c *checker) outliers(r *config.Resource, at string, p *networking.TrafficPolicy, subset map[string]string) {
	c.leavesNoneOut(r, at+".outlierDetection", p.GetOutlierDetection(), subset)
	for i, ps := range p.GetPortLevelSettings() {
		c.leavesNoneOut(r, fmt.Sprintf("%s.portLevelSettings[%d].outlierDetection", at, i), ps.GetOutlierDetection(), subset)
	}
}

func (c *checker) leavesNoneOut(r *config.Resource, field string, o *networking.OutlierDetection, subset map[string]string) {
	svc := c.service(r.Spec.(*networking.DestinationRule).GetHost(), r.Namespace)
	if o == nil || svc == nil || svc.Resolution != registry.Static {
		return
	}
	perPort, most := map[uint32]int{}, 0
	for _, e := range c.s.Registry.Endpoints(svc) {
		if Selects(subset, e.Labels) {
			perPort[e.ServicePort]++
			most = max(most, perPort[e.ServicePort])
		}
	}
	percent := cmp.Or(o.GetMaxEjectionPercent(), 10)
	if most > 1 && most*int(percent) < 100 {
		c.find(config.Questionable, r, field+".maxEjectionPercent", fmt.Sprint(percent),
			fmt.Sprintf("no endpoint is ever left out: %d%% of the %d that %s has are less than one", percent, most, svc.Hostname),
			fmt.Sprintf("set maxEjectionPercent to %d or more; 100 where calls may fail over to other localities", (100+most-1)/most))
	}
}

// anyService says whether a host, which may be a pattern, covers a service.
func (c *checker) anyService(host, namespace string) bool {
	if !strings.HasPrefix(host, "*") {
		return c.service(host, namespace) != nil || c.coveredByWildcard(host, namespace)
	}
	return slices.ContainsFunc(c.w.services, func(svc *registry.Service) bool {
		return svc.VisibleTo(namespace) && overlapHosts(host, svc.Hostname)
	})
}

func (c *checker) coveredByWildcard(host, namespace string) bool {
	return slices.ContainsFunc(c.w.services, func(svc *registry.Service) bool {
		return strings.HasPrefix(svc.Hostname, "*") && svc.VisibleTo(namespace) && MatchHost(svc.Hostname, host)
	})
}

func (c *checker) sidecars() {
	for _, r := range c.s.resources[config.Sidecar] {
		spec := r.Spec.(*networking.Sidecar)
		for i, listener := range spec.GetIngress() {
			at := fmt.Sprintf("spec.ingress[%d].tls", i)
			c.serverCredentials(r, at, listener.GetTls())
			if listener.GetTls() != nil {
				c.ownTLS(r, at, spec.GetWorkloadSelector().GetLabels(), listener.GetPort().GetNumber())
			}
		}
		for i, listener := range spec.GetEgress() {
			for j, host := range listener.GetHosts() {
				c.egressHost(r, fmt.Sprintf("spec.egress[%d].hosts[%d]", i, j), host)
			}
			c.egressPort(r, fmt.Sprintf("spec.egress[%d].port.number", i), listener)
		}
	}
}

// ownTLS tells of TLS that a Sidecar has end at a port where none of its workloads has the mesh's own disabled.
func (c *checker) ownTLS(r *config.Resource, field string, labels map[string]string, port uint32) {
	mode := c.s.peerAuth.mode(r.Namespace, labels, port)
	found, _ := c.s.Registry.Workloads(r.Namespace, labels)
	for _, w := range found {
		if mode == Disable {
			break
		}
		mode = c.s.peerAuth.mode(r.Namespace, registry.WorkloadLabels(w), port)
	}
	if mode != Disable {
		c.warn(r, field, "", fmt.Sprintf("has no effect: the port accepts the mesh's TLS (%s)", mode),
			fmt.Sprintf("set portLevelMtls of the workloads' PeerAuthentication to DISABLE for port %d", port))
	}
}

// egressHost tells of a host that a Sidecar lets callers see and nobody has. One of the root namespace is for the workloads of
// all others: "." is theirs, and what may be seen by any of them is no mistake.
func (c *checker) egressHost(r *config.Resource, field, host string) {
	ns, pattern, _ := strings.Cut(host, "/")
	if ns == "~" || strings.HasPrefix(pattern, "*") {
		return
	}
	everybody := r.Namespace == c.w.mesh.GetRootNamespace()
	seen := host
	if everybody && ns == "." {
		seen = "*/" + pattern
	}
	egress := newEgress(&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{seen}}}}, r.Namespace)
	for _, svc := range c.w.services {
		if (everybody || svc.VisibleTo(r.Namespace)) && egress.seeAny(svc) {
			return
		}
	}
	if c.anyRuleHost(r.Namespace, egress) { // which is called by the rule's name
		return
	}
	c.find(config.UnknownHost, r, field, host, "there is no such service", c.nearestHost(pattern, r.Namespace))
}

// policies warns of actions and conditions that are not enforced as written.
func (c *checker) policies() {
	for _, ns := range slices.Sorted(maps.Keys(c.s.authz.byNamespace)) {
		for _, p := range c.s.authz.byNamespace[ns] {
			c.policy(p)
			c.defeated(p)
			c.identities(p)
		}
	}
}
