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

// Problems returns invalid references and settings without effect, in a stable order: the registry's problems first.
// The documents are checked at the first call. Skipped patches of EnvoyFilters are added when resources are built.
func (s *Snapshot) Problems() []config.Problem {
	s.checked.once.Do(func() {
		c := checker{s: s, w: s.index, suggestions: maxSuggestions, before: s.checked.previous, clean: newCleanRuleCache(s)}
		c.checkVirtualServices()
		c.checkDestinationRules()
		c.checkGateways()
		c.checkSidecars()
		c.checkPolicies()
		c.checkRuleConflicts()
		c.checkGatewayConflicts()
		c.checkSharedAddresses()
		c.checkPortProtocols()
		c.checkSelectors()
		c.checkStrictWithoutSidecar()
		c.checkPeerPorts()
		c.checkTelemetries()
		c.checkPullSecrets()
		c.checkProxyVariables()
		slices.SortStableFunc(c.problems, comparePosition)
		s.checked.problems = c.problems
		s.checked.after.Store(c.clean)
	})
	ended := checker{s: s}
	ended.checkCertificates(time.Now()) // expiry does not change a document
	return slices.Concat(s.Registry.Problems, s.checked.problems, ended.problems, s.EnvoyFilterProblems())
}

// check contains the problems of the rules and policies after the first call of Problems.
type check struct {
	once     sync.Once
	problems []config.Problem
	previous *cleanRuleCache // of the last checked snapshot; nil if there is none
	after    atomic.Pointer[cleanRuleCache]
}

// next returns the check of the next snapshot. c may be nil.
func (c *check) next() *check {
	switch {
	case c == nil:
		return &check{}
	case c.after.Load() != nil:
		return &check{previous: c.after.Load()}
	}
	return &check{previous: c.previous}
}

// maxSuggestions limits the searches for similar names. A mesh with more unknown names has another cause than
// misspelling.
const maxSuggestions = 50

// checker collects problems.
type checker struct {
	s        *Snapshot
	w        *meshIndex
	problems []config.Problem
	// suggestions is the number of remaining searches for similar names.
	suggestions int
	// before contains the rules without problems in the last check, clean those in this one.
	before, clean *cleanRuleCache
	changes       *serviceChanges // difference between the two; set at first use
	// namespaces are the namespaces that occur in the mesh; set at first use.
	namespaces map[string]bool
	// byLabel contains the services by each label of their selectors; set at first use.
	byLabel map[labelKey][]*registry.Service
	// selectedNamespaces are the namespaces of the known workloads of the Gateway that is checked.
	selectedNamespaces []string
}

// comparePosition orders problems by file, line and column.
func comparePosition(a, b config.Problem) int {
	return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
}

// suggestName returns the most similar name, or "".
func (c *checker) suggestName(written string, names []string) string {
	if c.suggestions == 0 {
		return ""
	}
	c.suggestions--
	return nearestHost(written, names)
}

// reportNoEffect reports a setting that has no effect as written. Settings with their own code use reportWarning.
func (c *checker) reportNoEffect(r *config.Resource, field, value, message, remedy string) {
	c.reportWarning(config.NoEffect, r, field, value, message, remedy)
}

func (c *checker) reportWarning(code config.Code, r *config.Resource, field, value, message, remedy string) {
	c.report(code, config.Warning, r, field, value, message, remedy)
}

// report records a finding, unless an annotation of the document suppresses it.
func (c *checker) report(code config.Code, severity config.Severity, r *config.Resource, field, value, message, remedy string) {
	p := config.Problem{
		Code: code, Severity: severity, Key: r.Key, At: r.PositionOf(field), Field: field, Value: value, Message: message, Remedy: remedy,
	}
	if !config.Suppresses(r.Annotations, p) {
		c.problems = append(c.problems, p)
	}
}

// resolveTarget returns the full name of the service to which a host in a document of the namespace refers. Aliases are
// resolved.
func (c *checker) resolveTarget(host, namespace string) string {
	return c.s.Registry.Target(c.s.Registry.ResolveHostname(host, namespace))
}

// lookupService returns the service to which a host in a document of the namespace refers, or nil if it is not visible.
func (c *checker) lookupService(host, namespace string) *registry.Service {
	full := c.s.Registry.ResolveHostname(host, namespace)
	for _, svc := range c.s.Registry.ByHostname(c.s.Registry.Target(full)) {
		if svc.IsKnownAs(full, namespace) {
			return svc
		}
	}
	return nil
}

// suggestHost returns the remedy for an unknown host.
func (c *checker) suggestHost(host, namespace string) string {
	var names []string
	for _, svc := range c.s.Registry.Services {
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
	if n := c.suggestName(host, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "add a Service or a ServiceEntry of this name, or correct the host"
}

func (c *checker) checkVirtualServices() {
	taken := make(map[exportedHost]*VirtualService, len(c.w.virtualServices.all))
	for _, v := range c.w.virtualServices.all {
		c.checkHosts(v, taken)
		if c.isStillClean(v) {
			continue
		}
		found, suggestions := len(c.problems), c.suggestions
		for i, g := range v.Gateways {
			c.checkGatewayReference(v, i, g)
		}
		c.checkRules(v.withoutDelegates())
		if len(c.problems) == found && c.suggestions == suggestions {
			c.recordClean(v)
		}
	}
	for _, r := range c.w.virtualServices.delegates.byKey {
		c.checkRules(&VirtualService{Resource: r, Spec: r.Spec.(*networking.VirtualService)})
	}
}

// checkRules checks the destinations and delegates of a document's routes.
func (c *checker) checkRules(v *VirtualService) {
	for d := range Destinations(v.Spec) {
		c.checkDestination(v, d)
	}
	c.checkRoutes(v)
	for i, r := range v.Spec.GetHttp() {
		if r.GetDelegate() == nil {
			continue
		}
		at := fmt.Sprintf("spec.http[%d].delegate", i)
		to := c.w.virtualServices.delegates.find(v.Resource, r.GetDelegate())
		if to == nil {
			c.reportWarning(config.UnknownDelegate, v.Resource, at, r.GetDelegate().GetName(),
				"there is no such VirtualService without hosts, or it is not exported to here: the route is left out", "add it, or correct the name and namespace")
			continue
		}
		for j, own := range to.Spec.(*networking.VirtualService).GetHttp() {
			if _, possible := MergeMatches(r.GetMatch(), own.GetMatch()); !possible {
				c.reportWarning(config.UnreachableRoute, v.Resource, at, r.GetDelegate().GetName(),
					fmt.Sprintf("spec.http[%d] of the delegate is left out: its match cannot be joined with that of this route", j),
					"make the delegate match what this route matches: a path that begins with its prefix, and the same values of all other conditions")
			}
		}
	}
}

// withoutDelegates returns the rule without its delegates' routes, so that field paths refer to its document.
func (v *VirtualService) withoutDelegates() *VirtualService {
	written := *v
	written.Spec = v.Resource.Spec.(*networking.VirtualService)
	return &written
}

// checkHosts reports unknown hosts, and hosts that an older rule already has, because sidecars do not merge rules.
func (c *checker) checkHosts(v *VirtualService, taken map[exportedHost]*VirtualService) {
	if !v.IsForGateway(MeshGateway) {
		return
	}
	exported := exportKey(v.ExportTo)
	for i, host := range v.Hosts {
		written, of := v.Spec.GetHosts()[i], exportedHost{host, exported}
		if first := taken[of]; first != nil && first != v {
			c.reportWarning(config.HostConflict, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written,
				fmt.Sprintf("sidecars follow the older %s for this host; this one has no effect on them", first.Key),
				"put all routes of the host into one VirtualService")
			continue
		}
		taken[of] = v
		if c.checkAlias(v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, host) {
			continue
		}
		if !strings.Contains(written, ".") && written != "*" && c.lookupService(written, v.Namespace) == nil {
			c.reportWarning(config.UnknownHost, v.Resource, fmt.Sprintf("spec.hosts[%d]", i), written, fmt.Sprintf("there is no service %s", host), c.suggestHost(written, v.Namespace))
		}
	}
}

// exportedHost is a host of VirtualServices with the same exportTo.
type exportedHost struct{ host, exportTo string }

func (c *checker) checkGatewayReference(v *VirtualService, i int, gateway string) {
	if gateway == MeshGateway {
		return
	}
	var names []string
	for _, g := range c.s.gateways {
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
	c.reportWarning(config.UnknownGateway, v.Resource, fmt.Sprintf("spec.gateways[%d]", i), written, fmt.Sprintf("there is no Gateway %s: the routes do not apply to it", gateway), remedy)
}

func (c *checker) checkDestination(v *VirtualService, d DestinationRef) {
	host := d.Destination.GetHost()
	svc := c.lookupService(host, v.Namespace)
	if svc == nil {
		c.reportUnknownHost(v.Resource, d.Path()+".host", host, "what is routed there is answered with 503")
		return
	}
	c.checkPort(v, d, svc)
	c.checkSubset(v, d, svc)
}

func (c *checker) checkPort(v *VirtualService, d DestinationRef, svc *registry.Service) {
	number := d.Destination.GetPort().GetNumber()
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
	c.reportWarning(config.UnknownPort, v.Resource, d.Path()+".port.number", fmt.Sprint(number), fmt.Sprintf("%s has no port %d: what is routed there is answered with 503", svc.Hostname, number),
		"its ports are "+strings.Join(ports, ", "))
}

func (c *checker) checkSubset(v *VirtualService, d DestinationRef, svc *registry.Service) {
	name := d.Destination.GetSubset()
	if name == "" {
		return
	}
	rule := c.w.destinationRules.lookup(v.Namespace, svc.Hostname, svc.Namespace)
	if subset := rule.Subset(name); subset != nil {
		c.checkEmptySubset(v, d, svc, subset)
		return
	}
	for _, some := range c.w.destinationRules.inNamespace(v.Namespace).selective {
		if MatchHost(some.Host, svc.Hostname) && some.Subset(name) != nil {
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
			remedy = fmt.Sprintf("%s has the subsets %s", rule.From[0].Key, strings.Join(names, ", "))
		}
	}
	c.reportWarning(config.UnknownSubset, v.Resource, d.Path()+".subset", name, fmt.Sprintf("%s has no such subset: what is routed there is answered with 503", svc.Hostname), remedy)
}

func (c *checker) checkDestinationRules() {
	for _, r := range c.s.resources[config.DestinationRule] {
		spec := r.Spec.(*networking.DestinationRule)
		host := c.s.Registry.ResolveHostname(spec.GetHost(), r.Namespace)
		if c.checkAlias(r, "spec.host", spec.GetHost(), host) {
			continue
		}
		if !c.anyService(host, r.Namespace) {
			c.reportUnknownHost(r, "spec.host", spec.GetHost(), "the rule has no effect")
		}
		c.checkCallerTLS(r)
		c.checkProxyProtocol(r)
		c.checkClientCredentials(r, "spec.trafficPolicy", spec.GetTrafficPolicy())
		c.checkOutlierDetection(r, "spec.trafficPolicy", spec.GetTrafficPolicy(), nil)
		for i, s := range spec.GetSubsets() {
			at := fmt.Sprintf("spec.subsets[%d].trafficPolicy", i)
			c.checkClientCredentials(r, at, s.GetTrafficPolicy())
			c.checkOutlierDetection(r, at, s.GetTrafficPolicy(), s.GetLabels())
		}
	}
}

// checkOutlierDetection reports outlier detection that ejects no endpoint: with so few endpoints, maxEjectionPercent
// allows less than one. Envoy treats the percentage as an upper limit. Istio's default of 10 % needs at least ten
// endpoints.
func (c *checker) checkOutlierDetection(r *config.Resource, at string, p *networking.TrafficPolicy, subset map[string]string) {
	c.coversAllRequests(r, at+".outlierDetection", p.GetOutlierDetection(), subset)
	for i, ps := range p.GetPortLevelSettings() {
		c.coversAllRequests(r, fmt.Sprintf("%s.portLevelSettings[%d].outlierDetection", at, i), ps.GetOutlierDetection(), subset)
	}
}

func (c *checker) coversAllRequests(r *config.Resource, field string, o *networking.OutlierDetection, subset map[string]string) {
	svc := c.lookupService(r.Spec.(*networking.DestinationRule).GetHost(), r.Namespace)
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
		c.reportWarning(config.Questionable, r, field+".maxEjectionPercent", fmt.Sprint(percent),
			fmt.Sprintf("no endpoint is ever left out: %d%% of the %d that %s has are less than one", percent, most, svc.Hostname),
			fmt.Sprintf("set maxEjectionPercent to %d or more; 100 where calls may fail over to other localities", (100+most-1)/most))
	}
}

// anyService reports whether a host, which may be a pattern, covers a service.
func (c *checker) anyService(host, namespace string) bool {
	if !strings.HasPrefix(host, "*") {
		return c.lookupService(host, namespace) != nil || c.coveredByWildcard(host, namespace)
	}
	return slices.ContainsFunc(c.s.Registry.Services, func(svc *registry.Service) bool {
		return svc.VisibleTo(namespace) && HostsOverlap(host, svc.Hostname)
	})
}

func (c *checker) coveredByWildcard(host, namespace string) bool {
	return slices.ContainsFunc(c.s.Registry.Services, func(svc *registry.Service) bool {
		return strings.HasPrefix(svc.Hostname, "*") && svc.VisibleTo(namespace) && MatchHost(svc.Hostname, host)
	})
}

func (c *checker) checkSidecars() {
	for _, r := range c.s.resources[config.Sidecar] {
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

// checkOwnTLS reports TLS termination in a Sidecar's port for which mutual TLS is not disabled in any of its workloads.
func (c *checker) checkOwnTLS(r *config.Resource, field string, labels map[string]string, port uint32) {
	mode := c.s.MTLSMode(r.Namespace, labels, port)
	found, _ := c.s.Registry.Workloads(r.Namespace, labels)
	for _, w := range found {
		if mode == Disable {
			break
		}
		mode = c.s.MTLSMode(r.Namespace, registry.WorkloadLabels(w), port)
	}
	if mode != Disable {
		c.reportNoEffect(r, field, "", fmt.Sprintf("has no effect: the port accepts the mesh's TLS (%s)", mode),
			fmt.Sprintf("set portLevelMtls of the workloads' PeerAuthentication to DISABLE for port %d", port))
	}
}

// checkEgressHost reports unknown hosts in a Sidecar. In the root namespace, a Sidecar applies to the workloads of all
// namespaces, and "." means each workload's own. So a host is accepted there if any namespace may see it.
func (c *checker) checkEgressHost(r *config.Resource, field, host string) {
	ns, pattern, _ := strings.Cut(host, "/")
	if strings.HasPrefix(pattern, "*") {
		return
	}
	ns = strings.TrimPrefix(ns, "~")
	if ns == "" {
		ns = "*"
	}
	everybody := r.Namespace == c.s.Mesh.GetRootNamespace()
	seen := ns + "/" + pattern
	if everybody && ns == "." {
		seen = "*/" + pattern
	}
	egress := NewEgressHosts(&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{seen}}}}, r.Namespace)
	for _, svc := range c.s.Registry.Services {
		if (everybody || svc.VisibleTo(r.Namespace)) && egress.ContainsService(svc) {
			return
		}
	}
	if c.anyRuleHost(r.Namespace, egress) { // callers use the rule's host
		return
	}
	c.reportWarning(config.UnknownHost, r, field, host, "there is no such service", c.suggestHost(pattern, r.Namespace))
}

// checkPolicies reports AuthorizationPolicies that are not enforced as written.
func (c *checker) checkPolicies() {
	for _, ns := range slices.Sorted(maps.Keys(c.s.authz.byNamespace)) {
		for _, p := range c.s.authz.byNamespace[ns] {
			c.checkPolicy(p)
			c.checkUnreachablePolicy(p)
			c.checkIdentities(p)
		}
	}
}
