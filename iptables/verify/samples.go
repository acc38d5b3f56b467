package verify

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// endpoints contains the link and the addresses that samples use.
type endpoints struct {
	link string                           // inbound packets arrive, and outbound packets leave, through this link
	own  map[iptables.Families]netip.Addr // the namespace's address
	// The addresses of the link's ends: near is in the namespace, and far is outside.
	near, far map[iptables.Families]netip.Addr
}

func (p *endpoints) families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if p.own[f].IsValid() {
			all = append(all, f)
		}
	}
	return all
}

// sample is a packet to send.
type sample struct {
	iptables.Packet
	rule       string            // ID of the rule that the sample tests; "" if it does not test a single rule
	sourcePort uint16            // 0: any
	via        string            // the tested interface through which it is sent or received; "" for the harness's link and lo
	own        bool              // the destination is the pod itself
	answered   bool              // the receiver outside replies
	answerer   *packettest.Owner // the process in the namespace that receives the packet and replies
}

// sampler generates packets that show the effect of rules. port, user and group are defaults; no rule names them.
type sampler struct {
	endpoints
	rules *iptables.RuleSet
	port  uint16
	user  uint32
	group uint32
	// foreign lists the destinations that rules of other programs name.
	foreign []iptables.NamedDestination
	// singleUser reports whether this process cannot send packets as another user. user and group are then its own.
	singleUser bool
	// socketsOnly reports whether only sockets are available. Inbound packets can then not be sent, and packets that
	// leave the namespace not be observed.
	socketsOnly bool
}

// canSend reports whether the packet can be sent and its arrival can be observed.
func (s *sampler) canSend(p *iptables.Packet) bool {
	if p.Interface != s.link && p.Interface != "lo" {
		return s.canTraverse(p)
	}
	if p.Direction == iptables.Inbound {
		return !s.socketsOnly
	}
	if s.singleUser && (*p.UID != s.user || *p.GID != s.group) {
		return false
	}
	if !s.socketsOnly || expectedOutcome(iptables.Explain(s.rules, *p)).end != iptables.Passes {
		return true
	}
	return p.Interface == "lo" && p.To.Port() == s.port // unprivileged processes can listen on s.port
}

// canTraverse reports whether a packet can be sent through an interface of the namespace other than lo. It returns
// false for an inbound packet to another host that is not captured, because the namespace would forward it into a
// network.
func (s *sampler) canTraverse(p *iptables.Packet) bool {
	switch {
	case s.socketsOnly:
		return false
	case p.Direction == iptables.Outbound:
		return !s.singleUser || *p.UID == s.user && *p.GID == s.group
	}
	return p.To.Addr() == s.own[p.Family()] || expectedOutcome(iptables.Explain(s.rules, *p)).end != iptables.Passes
}

// maxSamples is the maximum number of packets of one run.
const maxSamples = 300

func newSampler(rules *iptables.RuleSet, at endpoints, by packettest.Sender) *sampler {
	s := &sampler{endpoints: at, rules: rules}
	s.port, s.user, s.group = s.chooseUnnamed()
	if !by.AnyUser {
		s.singleUser, s.user, s.group = true, by.UID, by.GID
	}
	return s
}

// samples returns packets of each kind, and one packet for each rule. The latter would arrive elsewhere without the
// rule or, if there is no such packet, at least matches the rule. left is the number of rules without a packet, because
// of maxSamples, maxWork or the end of ctx.
func (s *sampler) samples(ctx context.Context) (all []sample, left int) {
	seen := map[string]bool{}
	add := func(one sample) {
		one.own = one.To.Addr() == s.own[one.Family()]
		if one.Interface != s.link && one.Interface != "lo" {
			one.via = one.Interface
		}
		if key := one.String(); !seen[key] {
			seen[key] = true
			all = append(all, one)
		}
	}
	for _, p := range slices.Concat(s.basicPackets(), s.foreignPackets(), s.forwardedPackets()) {
		if s.canSend(&p) {
			add(sample{Packet: p})
		}
	}
	found, left := s.findSamples(ctx)
	for _, one := range found {
		if len(all) < maxSamples {
			add(one)
		} else {
			left++
		}
	}
	return all, left
}

// chooseUnnamed returns a port, a user and a group that no rule names.
func (s *sampler) chooseUnnamed() (port uint16, user, group uint32) {
	port, user, group = 30123, 10123, 10123
	var ports []iptables.PortRange
	var ids, included []uint32
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if r.Match.NotGIDs {
				included = r.Match.GIDs
			}
			ports = append(append(ports, r.Match.SourcePorts...), r.Match.DestinationPorts...)
			ids = append(append(ids, r.Match.UIDs...), r.Match.GIDs...)
			ports = append(ports, iptables.PortRange{First: r.Verdict.Port, Last: r.Verdict.Port})
		}
	}
	for range 65535 {
		if !slices.ContainsFunc(ports, func(r iptables.PortRange) bool { return r.Contains(port) }) {
			break
		}
		port = port%65535 + 1
	}
	for slices.Contains(ids, user) {
		user, group = user+1, group+1
	}
	if len(included) > 0 {
		group = included[0] // only processes in these groups are captured
	}
	return port, user, group
}

// outsideAddress returns an address outside the pod. It is in no CIDR that a rule names, except 0.0.0.0/0 and ::/0.
// Documentation addresses are preferred.
func (s *sampler) outsideAddress(f iptables.Families) netip.Addr {
	candidates := []string{"203.0.113.77", "198.51.100.77", "192.0.2.77", "100.64.7.7", "10.77.7.7"}
	if f == iptables.IPv6 {
		candidates = []string{"2001:db8:77::7", "3fff:77::7", "fd77:7::7", "2600:77::7"}
	}
	for _, c := range candidates {
		if a := netip.MustParseAddr(c); !s.isNamed(a) {
			return a
		}
	}
	return netip.MustParseAddr(candidates[0])
}

func (s *sampler) isNamed(a netip.Addr) bool {
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(r.Match.Destination, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a) }) {
				return true
			}
		}
	}
	return false
}

// loopback returns the family's address of localhost.
func loopback(f iptables.Families) netip.Addr {
	if f == iptables.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.MustParseAddr("127.0.0.1")
}

// basicPackets returns packets of common kinds, which do not depend on the rules.
func (s *sampler) basicPackets() (all []iptables.Packet) {
	for _, f := range s.families() {
		for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
			for _, to := range []netip.Addr{s.outsideAddress(f), s.own[f], loopback(f)} {
				all = append(all, s.outbound(protocol, to, s.port))
			}
			all = append(all, s.inbound(f, protocol, s.port), s.outbound(protocol, s.outsideAddress(f), 53))
		}
	}
	return all
}

// maxForeign is the maximum number of destinations in rules of other programs that are tested.
const maxForeign = 30

// foreignDestinations returns the destinations that rules of other programs match, without duplicates.
func foreignDestinations(chains []iptables.ForeignChain) (all []iptables.NamedDestination) {
	for _, c := range chains {
		for _, n := range c.NamedDestinations {
			if len(all) < maxForeign {
				all = appendUnique(all, n)
			}
		}
	}
	return all
}

// foreignPackets returns packets to the destinations that rules of other programs match: outbound TCP and UDP, and
// inbound TCP.
func (s *sampler) foreignPackets() (all []iptables.Packet) {
	uids := s.collectNames().uids
	for _, n := range s.foreign {
		port := cmp.Or(n.Port, s.port)
		for _, f := range s.families() {
			to := n.Address
			if !to.IsValid() || to.IsUnspecified() || to.IsMulticast() || to.IsLinkLocalUnicast() {
				to = s.outsideAddress(f)
			}
			if familyOf(to) != f || s.rules.Families&f == 0 {
				continue
			}
			p := s.outbound(iptables.TCP, to, port)
			all = append(all, p, s.outbound(iptables.UDP, to, port))
			if len(uids) > 0 { // the proxy forwards captured connections to that destination
				p.UID = &uids[0]
				all = append(all, p)
			}
			if !n.Address.IsValid() {
				all = append(all, s.inbound(f, iptables.TCP, port))
			}
		}
	}
	return all
}

// forwardedPackets returns connections of a transparent proxy to the application, with the client's address as the
// source. Such a connection is established only if the connection mark makes the kernel route the replies to the proxy.
// The destination is the near address, so that misrouted replies stay in the harness.
func (s *sampler) forwardedPackets() (all []iptables.Packet) {
	mark, uids := transparentVerdict(s.rules).Mark.Value, s.collectNames().uids
	if mark == 0 || len(uids) == 0 || s.socketsOnly {
		return nil
	}
	for _, f := range s.families() {
		p := s.outbound(iptables.TCP, s.near[f], s.port)
		p.From, p.UID, p.Mark = netip.AddrPortFrom(s.far[f], 0), &uids[0], mark
		if s.rules.Families&f != 0 {
			all = append(all, p)
		}
	}
	return all
}

// outbound returns a packet that an application sends.
func (s *sampler) outbound(protocol iptables.Protocol, to netip.Addr, port uint16) iptables.Packet {
	f := familyOf(to)
	p := iptables.Packet{
		Direction: iptables.Outbound, Protocol: protocol, Interface: s.link, UID: &s.user, GID: &s.group,
		From: netip.AddrPortFrom(s.near[f], 0), To: netip.AddrPortFrom(to, port),
	}
	if iptables.IsLocal(to, []netip.Addr{s.own[f], s.near[f]}) {
		p.Interface, p.From = "lo", netip.AddrPortFrom(to, 0)
	}
	return p
}

func (s *sampler) inbound(f iptables.Families, protocol iptables.Protocol, port uint16) iptables.Packet {
	return iptables.Packet{
		Direction: iptables.Inbound, Protocol: protocol, Interface: s.link,
		From: netip.AddrPortFrom(s.far[f], 0), To: netip.AddrPortFrom(s.own[f], port),
	}
}

func familyOf(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// subject describes the packet and its sender for reports.
func (s *sample) subject() string {
	kind := fmt.Sprintf("%s %s", familyOf(s.To.Addr()), protocolName(s.Protocol))
	switch {
	case s.Mark != 0:
		return fmt.Sprintf("%s that the proxy forwards to the pod with the client's address", kind)
	case s.Direction == iptables.Inbound && s.via != "" && !s.own:
		return fmt.Sprintf("%s to %s that arrives through %s", kind, s.To, s.via)
	case s.Direction == iptables.Inbound:
		return fmt.Sprintf("inbound %s to port %d%s", kind, s.To.Port(), s.interfaceSuffix())
	case s.To.Addr().IsLoopback():
		return fmt.Sprintf("%s within the pod to %s from %s", kind, s.To, s.ownerText())
	case s.Interface == "lo":
		return fmt.Sprintf("%s to the pod's own address, port %d, from %s", kind, s.To.Port(), s.ownerText())
	}
	return fmt.Sprintf("outbound %s to %s%s from %s", kind, s.To, s.interfaceSuffix(), s.ownerText())
}

func (s *sample) interfaceSuffix() string {
	if s.via == "" {
		return ""
	}
	return " through " + s.via
}

func (s *sample) ownerText() string {
	text := fmt.Sprintf("uid %d, gid %d", *s.UID, *s.GID)
	if s.From.Addr().IsValid() && s.Interface == "lo" && s.From.Addr() != s.To.Addr() {
		text += ", source " + s.From.Addr().String()
	}
	return text
}

func protocolName(p iptables.Protocol) string {
	if p == iptables.UDP {
		return "UDP"
	}
	return "TCP"
}

// unverifiable describes the traffic that cannot be verified, and which privileges are missing.
func (s *sampler) unverifiable() (all []string) {
	if s.socketsOnly {
		all = append(all, "inbound traffic: sending packets from outside needs CAP_NET_ADMIN and CAP_NET_RAW")
	}
	if !s.singleUser {
		return all
	}
	captured := func(p iptables.Packet) bool { return p.Interface != "lo" && s.canSend(&p) }
	if s.socketsOnly && !slices.ContainsFunc(s.basicPackets(), captured) {
		return append(all, fmt.Sprintf("outbound traffic of applications: the rules do not capture traffic of this process's user %d and group %d; "+
			"run it as an application's user, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_SETUID and CAP_SETGID", s.user, s.group))
	}
	return append(all, "traffic of other users than this process's: sending it needs CAP_SETUID and CAP_SETGID, and the same user namespace")
}
