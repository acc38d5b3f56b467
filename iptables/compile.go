package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// The chains of the contract.
const (
	chainInbound    = "ISTIO_INBOUND"
	chainOutput     = "ISTIO_OUTPUT"
	chainDNS        = "ISTIO_OUTPUT_DNS"
	chainRedirect   = "ISTIO_REDIRECT"
	chainInRedirect = "ISTIO_IN_REDIRECT"
	chainDivert     = "ISTIO_DIVERT"
	chainTProxy     = "ISTIO_TPROXY"
	chainDrop       = "ISTIO_DROP"
	// chainVirtual is ours: what virtual interfaces send is outbound traffic, with all that is excluded from it.
	chainVirtual = "ISTIO_VIRTUAL"
)

const loopback = "lo"

// PassthroughIPv6 is what Envoy binds for inbound IPv6 connections that it passes on. It is on lo because we put it there.
var PassthroughIPv6 = netip.MustParsePrefix("::6/128")

// routePriority is before the kernel's main table (32766), and after the first, local (0).
const routePriority = 1337

// Compile makes the rules of options. It refuses options that Validate refuses.
func Compile(o Options) (*RuleSet, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("the options of redirection: %w", err)
	}
	c := newCompiler(&o)
	rules := &RuleSet{Families: c.families | c.refused, Routing: c.routing()}
	captured := append(c.mangle(), c.nat()...)
	// Questions to resolvers are told apart in the families that are refused too: an application's must not pass as one
	// of the agent's that was from the same port.
	if c.refused != 0 {
		limit(captured, c.families)
	}
	rules.Chains = append(c.of(rules.Families).raw(), captured...)
	if c.refused != 0 {
		rules.Chains = append(rules.Chains, c.refusal()...)
	}
	GiveReasons(rules)
	return rules, nil
}

// compiler holds what the options come to.
type compiler struct {
	Options
	families Families // captured
	refused  Families
	dns      bool
	open     bool     // the agent's resolver is asked by virtual machines too
	asked    *Options // with the addresses of all families
}

func newCompiler(o *Options) *compiler {
	c := &compiler{Options: *o, asked: o}
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

// limitAddresses leaves out addresses of families that are not captured.
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

// inbound tells whether any inbound connection is captured.
func (c *compiler) inbound() bool { return c.InboundPorts.All || len(c.InboundPorts.Listed) > 0 }

// local are the addresses that rules name for each captured family.
type local struct {
	name        string // ends the rule's ID
	loopback    netip.Prefix
	passthrough netip.Prefix // what Envoy binds for what it passes on to the application
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

// owner is one of the identities of the proxy.
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

// routing is what transparent proxying and the inbound pass-through address of IPv6 need.
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

// chain gathers rules.
type chain struct{ Chain }

func newChain(t Table, name string) *chain { return &chain{Chain{Table: t, Name: name}} }

func newBase(t Table, h Hook) *chain { return &chain{Chain{Table: t, Name: BaseName(t, h), Hook: h}} }

func (c *chain) add(id string, m Match, v Verdict) {
	c.Rules = append(c.Rules, Rule{ID: id, Match: m, Verdict: v})
}

func (c *chain) jump(id string, m Match, to string) {
	c.add(id, m, Verdict{Action: Jump, Chain: to})
}

func (c *chain) leave(id string, m Match) {
	c.add(id, m, Verdict{Action: Return})
}

// used are the chains that hold rules and are called: a base chain, or one that a used chain jumps to.
func used(chains ...*chain) []Chain {
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

// limit makes the rules hold for the families alone.
func limit(chains []Chain, f Families) {
	for _, c := range chains {
		for i := range c.Rules {
			c.Rules[i].Match.Families = f
		}
	}
}

func oneNet(p netip.Prefix) []netip.Prefix { return []netip.Prefix{p} }

func onePort(p uint16) []PortRange { return []PortRange{{p, p}} }
