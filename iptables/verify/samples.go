package verify

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packets"
)

// place is where samples are sent: the addresses that there are.
type place struct {
	link      string // by which packets come in, and by which those to the outside leave
	own       map[iptables.Families]netip.Addr
	near, far map[iptables.Families]netip.Addr
}

func (p *place) families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if p.own[f].IsValid() {
			all = append(all, f)
		}
	}
	return all
}

// sample is a packet to send, and the rule that it was made for: "" if it was made for none.
type sample struct {
	iptables.Packet
	rule       string
	sourcePort uint16         // 0: any
	by         string         // the interface of the namespace that it passes; "": the test's own, or lo
	own        bool           // it is for the pod itself
	answered   bool           // who gets it outside answers
	answerer   *packets.Owner // who gets it in the namespace, and answers
}

// sampler makes packets that show what rules do. What a sample is not about is chosen so that no rule names it.
type sampler struct {
	place
	rules *iptables.RuleSet
	port  uint16
	user  uint32
	group uint32
	// foreign is what rules of others name.
	foreign []iptables.Named
	// alone says that user and group are this process's own, and that it cannot send as anybody else.
	alone bool
	// indoors says that packets from outside cannot be sent, and those that leave not be seen.
	indoors bool
}

// sends tells whether the packet can be sent, and where it arrives be seen.
func (s *sampler) sends(p *iptables.Packet) bool {
	if p.Interface != s.link && p.Interface != "lo" {
		return s.passes(p)
	}
	if p.Direction == iptables.Inbound {
		return !s.indoors
	}
	if s.alone && (*p.UID != s.user || *p.GID != s.group) {
		return false
	}
	if !s.indoors || wanted(iptables.Explain(s.rules, *p)).end != iptables.Passes {
		return true
	}
	return p.Interface == "lo" && p.To.Port() == s.port // which is nobody's, and open to every user
}

// passes tells whether a packet of one of the namespace's interfaces can be sent. What comes in by one for somebody else,
// and is not captured, would go out into a network.
func (s *sampler) passes(p *iptables.Packet) bool {
	switch {
	case s.indoors:
		return false
	case p.Direction == iptables.Outbound:
		return !s.alone || *p.UID == s.user && *p.GID == s.group
	}
	return p.To.Addr() == s.own[p.Family()] || wanted(iptables.Explain(s.rules, *p)).end != iptables.Passes
}

// maxSamples bounds the packets of one run.
const maxSamples = 300

func newSampler(rules *iptables.RuleSet, at place, by packets.Sender) *sampler {
	s := &sampler{place: at, rules: rules}
	s.port, s.user, s.group = s.unnamed()
	if !by.Anybody {
		s.alone, s.user, s.group = true, by.UID, by.GID
	}
	return s
}

// samples are packets of each kind, and for each rule one that would arrive elsewhere without it, or meets it at least.
// left tells how many rules there was no room for, or no time.
func (s *sampler) samples(ctx context.Context) (all []sample, left int) {
	seen := map[string]bool{}
	add := func(one sample) {
		one.own = one.To.Addr() == s.own[one.Family()]
		if one.Interface != s.link && one.Interface != "lo" {
			one.by = one.Interface
		}
		if key := one.String(); !seen[key] {
			seen[key] = true
			all = append(all, one)
		}
	}
	for _, p := range slices.Concat(s.kinds(), s.strangers(), s.passedOn()) {
		if s.sends(&p) {
			add(sample{Packet: p})
		}
	}
	found, left := s.telling(ctx)
	for _, one := range found {
		if len(all) < maxSamples {
			add(one)
		} else {
			left++
		}
	}
	return all, left
}

// unnamed are a port, a user and a group that no rule speaks of.
func (s *sampler) unnamed() (port uint16, user, group uint32) {
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
		group = included[0] // whoever is of none of them is not captured
	}
	return port, user, group
}

// outside is an address of documentation that no rule names, or names together with all others.
func (s *sampler) outside(f iptables.Families) netip.Addr {
	candidates := []string{"203.0.113.77", "198.51.100.77", "192.0.2.77", "100.64.7.7", "10.77.7.7"}
	if f == iptables.IPv6 {
		candidates = []string{"2001:db8:77::7", "3fff:77::7", "fd77:7::7", "2600:77::7"}
	}
	for _, c := range candidates {
		if a := netip.MustParseAddr(c); !s.names(a) {
			return a
		}
	}
	return netip.MustParseAddr(candidates[0])
}

func (s *sampler) names(a netip.Addr) bool {
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(r.Match.Destination, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a) }) {
				return true
			}
		}
	}
	return false
}

// loopback is the address of the family that applications call themselves by.
func loopback(f iptables.Families) netip.Addr {
	if f == iptables.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.MustParseAddr("127.0.0.1")
}

// kinds are packets that no rule has to speak of.
func (s *sampler) kinds() (all []iptables.Packet) {
	for _, f := range s.families() {
		for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
			for _, to := range []netip.Addr{s.outside(f), s.own[f], loopback(f)} {
				all = append(all, s.outbound(protocol, to, s.port))
			}
			all = append(all, s.inbound(f, protocol, s.port), s.outbound(protocol, s.outside(f), 53))
		}
	}
	return all
}

// maxForeign bounds the destinations of others' rules that are tried.
const maxForeign = 30

// named are the destinations that rules of others speak of, each once.
func named(chains []iptables.ForeignChain) (all []iptables.Named) {
	for _, c := range chains {
		for _, n := range c.Named {
			if len(all) < maxForeign {
				all = once(all, n)
			}
		}
	}
	return all
}

// strangers are connections and questions to where rules of others name, and connections from outside.
func (s *sampler) strangers() (all []iptables.Packet) {
	uids := s.named().uids
	for _, n := range s.foreign {
		port := cmp.Or(n.Port, s.port)
		for _, f := range s.families() {
			to := n.Address
			if !to.IsValid() || to.IsUnspecified() || to.IsMulticast() || to.IsLinkLocalUnicast() {
				to = s.outside(f)
			}
			if family(to) != f || s.rules.Families&f == 0 {
				continue
			}
			p := s.outbound(iptables.TCP, to, port)
			all = append(all, p, s.outbound(iptables.UDP, to, port))
			if len(uids) > 0 { // the proxy passes on to there
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

// passedOn are connections of a transparent proxy to the pod, with the client's address: they come about if the answers find
// back to the proxy, by the marks of the connection. They are to the Lab's address, so that answers astray get no further.
func (s *sampler) passedOn() (all []iptables.Packet) {
	mark, uids := transparent(s.rules).Mark.Value, s.named().uids
	if mark == 0 || len(uids) == 0 || s.indoors {
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

// outbound is a packet of an application.
func (s *sampler) outbound(protocol iptables.Protocol, to netip.Addr, port uint16) iptables.Packet {
	f := family(to)
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

func family(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// subject says whose packet it is, for reports.
func (s *sample) subject() string {
	kind := fmt.Sprintf("%s %s", family(s.To.Addr()), upper(s.Protocol))
	switch {
	case s.Mark != 0:
		return fmt.Sprintf("%s that the proxy passes on to the pod with the client's address", kind)
	case s.Direction == iptables.Inbound && s.by != "" && !s.own:
		return fmt.Sprintf("%s to %s that comes in by %s", kind, s.To, s.by)
	case s.Direction == iptables.Inbound:
		return fmt.Sprintf("inbound %s to port %d%s", kind, s.To.Port(), s.way())
	case s.To.Addr().IsLoopback():
		return fmt.Sprintf("%s within the pod to %s from %s", kind, s.To, s.owner())
	case s.Interface == "lo":
		return fmt.Sprintf("%s to the pod's own address, port %d, from %s", kind, s.To.Port(), s.owner())
	}
	return fmt.Sprintf("outbound %s to %s%s from %s", kind, s.To, s.way(), s.owner())
}

func (s *sample) way() string {
	if s.by == "" {
		return ""
	}
	return " by " + s.by
}

func (s *sample) owner() string {
	text := fmt.Sprintf("uid %d, gid %d", *s.UID, *s.GID)
	if s.From.Addr().IsValid() && s.Interface == "lo" && s.From.Addr() != s.To.Addr() {
		text += ", source " + s.From.Addr().String()
	}
	return text
}

func upper(p iptables.Protocol) string {
	if p == iptables.UDP {
		return "UDP"
	}
	return "TCP"
}

// unseen says what cannot be shown.
func (s *sampler) unseen() (all []string) {
	if s.indoors {
		all = append(all, "inbound traffic: only who has CAP_NET_ADMIN and CAP_NET_RAW can send packets from outside")
	}
	if !s.alone {
		return all
	}
	captured := func(p iptables.Packet) bool { return p.Interface != "lo" && s.sends(&p) }
	if s.indoors && !slices.ContainsFunc(s.kinds(), captured) {
		return append(all, fmt.Sprintf("outbound traffic of applications: the rules treat the user %d and the group %d of this process otherwise; "+
			"run it as an application's user, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_SETUID and CAP_SETGID", s.user, s.group))
	}
	return append(all, "traffic of other users than this process's: only who has CAP_SETUID and CAP_SETGID, and the same user namespace, can send it")
}
