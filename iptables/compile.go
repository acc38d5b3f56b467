package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// The names of the chains that are also in Istio.
const (
	chainInbound    = "ISTIO_INBOUND"
	chainOutput     = "ISTIO_OUTPUT"
	chainDNS        = "ISTIO_OUTPUT_DNS"
	chainRedirect   = "ISTIO_REDIRECT"
	chainInRedirect = "ISTIO_IN_REDIRECT"
	chainDivert     = "ISTIO_DIVERT"
	chainTProxy     = "ISTIO_TPROXY"
	chainDrop       = "ISTIO_DROP"
	// chainVirtual is not in Istio. It applies the outbound rules and exclusions to traffic from virtual interfaces.
	chainVirtual = "ISTIO_VIRTUAL"
)

const loopback = "lo"

// PassthroughIPv6 is the source address of connections from Envoy's InboundPassthroughCluster to IPv6 applications.
// Apply adds it to lo.
var PassthroughIPv6 = netip.MustParsePrefix("::6/128")

// routePriority is the priority of the policy rule: after the kernel's rule for the local table (0), and before its rule
// for the main table (32766).
const routePriority = 1337

// Compile returns the rule set for the options, or the error of Validate.
func Compile(o Options) (*RuleSet, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("redirection options: %w", err)
	}
	c := newCompiler(&o)
	rules := &RuleSet{Families: c.families | c.refused, Routing: c.routing()}
	captured := append(c.mangle(), c.nat()...)
	// Separate DNS queries of refused address families too: an application's query must not match the conntrack entry
	// of an agent's query from the same port.
	if c.refused != 0 {
		limitFamilies(captured, c.families)
	}
	rules.Chains = append(c.withFamilies(rules.Families).raw(), captured...)
	if c.refused != 0 {
		rules.Chains = append(rules.Chains, c.refusal()...)
	}
	SetReasons(rules)
	return rules, nil
}

// compiler contains the options and values derived from them.
type compiler struct {
	Options
	families Families // captured address families
	refused  Families
	dns      bool
	open     bool     // the agent's resolver also accepts queries of virtual machines
	original *Options // the options before limitAddresses
}

func newCompiler(o *Options) *compiler {
	c := &compiler{Options: *o, original: o}
	c.families, c.refused = o.capture()
	c.open = o.resolverIsOpen(c.families)
	c.ProxyUIDs, c.ProxyGIDs = unique(o.ProxyUIDs), unique(o.ProxyGIDs)
	c.ExcludeOwnerGroups = unique(o.ExcludeOwnerGroups)
	c.InboundPorts.Listed, c.InboundExcludePorts = unique(o.InboundPorts.Listed), unique(o.InboundExcludePorts)
	c.OutboundPorts, c.OutboundExcludePorts = unique(o.OutboundPorts), unique(o.OutboundExcludePorts)
	c.ExcludeInterfaces, c.VirtualInterfaces = unique(o.ExcludeInterfaces), unique(o.VirtualInterfaces)
	c.limitAddresses()
	return c
}

// limitAddresses removes CIDRs and resolvers of address families that are not captured.
func (c *compiler) limitAddresses() {
	inFamily := func(list []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(unique(list), func(p netip.Prefix) bool { return familyOf(p.Addr())&c.families == 0 })
	}
	c.OutboundCIDRs.Listed = inFamily(c.OutboundCIDRs.Listed)
	c.OutboundExcludeCIDRs = inFamily(c.OutboundExcludeCIDRs)
	c.DNSServers = slices.DeleteFunc(unique(c.DNSServers), func(a netip.Addr) bool { return familyOf(a)&c.families == 0 })
	c.dns = c.RedirectDNS && (c.CaptureAllDNS || len(c.DNSServers) > 0) && !c.excludesDNS()
}

func unique[T comparable](list []T) []T {
	var once []T
	for _, v := range list {
		if !slices.Contains(once, v) {
			once = append(once, v)
		}
	}
	return once
}

func (c *compiler) tproxy() bool { return c.Interception == TProxyMode }

// inbound reports whether any inbound connection is captured.
func (c *compiler) inbound() bool { return c.InboundPorts.All || len(c.InboundPorts.Listed) > 0 }

// local contains the loopback addresses of one captured address family.
type local struct {
	name        string // suffix of rule IDs
	loopback    netip.Prefix
	passthrough netip.Prefix // source address of Envoy's InboundPassthroughCluster
}

func (c *compiler) locals() []local {
	var l []local
	if c.families&IPv4 != 0 {
		l = append(l, local{"ipv4", c.LoopbackCIDR, netip.MustParsePrefix("127.0.0.6/32")})
	}
	if c.families&IPv6 != 0 {
		l = append(l, local{"ipv6", netip.MustParsePrefix("::1/128"), PassthroughIPv6})
	}
	return l
}

// owner is one user or group of the proxy.
type owner struct {
	name  string
	match Match
}

func (c *compiler) owners() []owner {
	var all []owner
	for _, uid := range c.ProxyUIDs {
		all = append(all, owner{"uid-" + decimal(uid), Match{UIDs: []uint32{uid}}})
	}
	for _, gid := range c.ProxyGIDs {
		all = append(all, owner{"gid-" + decimal(gid), Match{GIDs: []uint32{gid}}})
	}
	return all
}

// routing returns the required routing: for transparent proxying, and for the address PassthroughIPv6.
func (c *compiler) routing() *Routing {
	r := &Routing{}
	if c.tproxy() && c.inbound() {
		r.Mark, r.Table, r.Priority = c.TProxyMark, c.TProxyTable, routePriority
	}
	if c.families&IPv6 != 0 {
		r.LoopbackAddresses = []netip.Prefix{PassthroughIPv6}
	}
	if r.Mark == 0 && r.LoopbackAddresses == nil {
		return nil
	}
	return r
}

// chain is a chain under construction.
type chain struct{ Chain }

func newChain(t Table, name string) *chain { return &chain{Chain{Table: t, Name: name}} }

func newBase(t Table, h Hook) *chain { return &chain{Chain{Table: t, Name: BaseName(t, h), Hook: h}} }

func (c *chain) add(id string, m Match, v Verdict) {
	c.Rules = append(c.Rules, Rule{ID: id, Match: m, Verdict: v})
}

func (c *chain) jump(id string, m Match, to string) {
	c.add(id, m, Verdict{Action: Jump, Chain: to})
}

// leave adds a rule for packets that leave the chain at this point and return to the caller.
func (c *chain) leave(id string, m Match) {
	c.add(id, m, Verdict{Action: Return})
}

// usedChains returns the chains that have rules and are reachable: base chains, and chains that a used chain jumps to.
// It removes jumps to chains without rules.
func usedChains(chains ...*chain) []Chain {
	called := map[string]bool{}
	var kept []Chain
	for _, c := range slices.Backward(chains) {
		c.Rules = slices.DeleteFunc(c.Rules, func(r Rule) bool {
			return r.Verdict.Action == Jump && !slices.ContainsFunc(chains, func(to *chain) bool {
				return to.Name == r.Verdict.Chain && len(to.Rules) > 0
			})
		})
		if len(c.Rules) == 0 || c.Hook == "" && !called[c.Name] {
			continue
		}
		for _, r := range c.Rules {
			called[r.Verdict.Chain] = true
		}
		kept = append(kept, c.Chain)
	}
	slices.Reverse(kept)
	return kept
}

// limitFamilies restricts all rules of the chains to these address families.
func limitFamilies(chains []Chain, f Families) {
	for _, c := range chains {
		for i := range c.Rules {
			c.Rules[i].Match.Families = f
		}
	}
}

func oneNet(p netip.Prefix) []netip.Prefix { return []netip.Prefix{p} }

func onePort(p uint16) []PortRange { return []PortRange{{p, p}} }
