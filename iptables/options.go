package iptables

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Interception is how inbound connections reach Envoy.
type Interception string

// The ways of interception.
const (
	// RedirectMode rewrites the destination, and Envoy sees its own pod as source of what it forwards.
	RedirectMode Interception = "REDIRECT"
	// TProxyMode leaves the packet as it is, so that the application sees the client's address.
	TProxyMode Interception = "TPROXY"
)

// IPv6Policy says what is done with IPv6 traffic.
type IPv6Policy string

// The policies for IPv6. They bear on nothing where the namespace is dual stack by configuration: then it is captured.
const (
	// IPv6Auto captures IPv6 if the namespace has addresses of it and none of IPv4, and lets it pass otherwise: the Envoy
	// of a mesh without dual stack listens on IPv4 alone.
	IPv6Auto    IPv6Policy = "auto"
	IPv6Capture IPv6Policy = "capture"
	IPv6Reject  IPv6Policy = "reject" // what would be captured is refused
	IPv6Pass    IPv6Policy = "pass"   // IPv6 is not looked at
)

// Options are what a rule set is made of. The zero value is not usable; begin with DefaultOptions.
type Options struct {
	ProxyPort   uint16 // outbound connections go here
	InboundPort uint16 // inbound connections go here
	TunnelPort  uint16 // HBONE: Envoy listens here itself, nothing is redirected
	DNSPort     uint16 // the agent's resolver

	// ProxyUIDs and ProxyGIDs are what Envoy and the agent run as; their connections are their own.
	ProxyUIDs []uint32
	ProxyGIDs []uint32

	Interception Interception
	TProxyMark   uint32
	TProxyTable  int

	InboundPorts        Ports // captured
	InboundExcludePorts []PortRange

	OutboundCIDRs        CIDRs // captured
	OutboundExcludeCIDRs []netip.Prefix
	OutboundPorts        []PortRange // captured at any address
	OutboundExcludePorts []PortRange

	ExcludeInterfaces []string // neither inbound nor outbound traffic of these is touched
	VirtualInterfaces []string // what comes in from these is outbound traffic: of virtual machines, or inner containers

	OwnerGroups        Groups // whose outbound traffic is captured
	ExcludeOwnerGroups []uint32

	RedirectDNS   bool
	CaptureAllDNS bool         // of any resolver; otherwise of DNSServers
	DNSServers    []netip.Addr // those of resolv.conf
	// ResolverAddress is where the agent's resolver listens, host:port; "" is on localhost. Virtual machines' DNS is captured
	// only where it listens at every address of the families that are captured: a redirected question comes to that of the
	// interface.
	ResolverAddress string

	DropInvalid bool
	// LoopbackCIDR is the part of 127.0.0.0/8 that counts as the application's own: connections to it are left alone.
	LoopbackCIDR netip.Prefix

	DualStack bool
	IPv6      IPv6Policy
	// Addresses are those of the namespace, for IPv6Auto.
	Addresses []netip.Addr
}

// DefaultOptions are those of Istio's command without any flag: nothing is captured but the proxy's calls to itself.
func DefaultOptions() Options {
	return Options{
		ProxyPort: 15001, InboundPort: 15006, TunnelPort: 15008, DNSPort: 15053,
		ProxyUIDs: []uint32{1337}, ProxyGIDs: []uint32{1337},
		Interception: RedirectMode, TProxyMark: 1337, TProxyTable: 133,
		OwnerGroups:  Groups{All: true},
		LoopbackCIDR: netip.MustParsePrefix("127.0.0.1/32"),
		IPv6:         IPv6Auto,
	}
}

// Ports is a choice of ports: all, or those listed.
type Ports struct {
	All    bool
	Listed []PortRange
}

// CIDRs is a choice of addresses: all, or those listed.
type CIDRs struct {
	All    bool
	Listed []netip.Prefix
}

// Groups is a choice of groups of processes: all, or those listed.
type Groups struct {
	All    bool
	Listed []uint32
}

// String is the form in which the options are written: "80" or "80-90".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Contains tells whether the port is of the range.
func (p PortRange) Contains(port uint16) bool { return p.First <= port && port <= p.Last }

// capture says which families are captured, and which are refused.
func (o *Options) capture() (captured, refused Families) {
	switch {
	case o.DualStack, o.IPv6 == IPv6Capture:
		return BothFamilies, 0
	case o.IPv6 == IPv6Reject:
		return IPv4, IPv6
	case o.IPv6 == IPv6Pass:
		return IPv4, 0
	}
	if have := o.families(); have == IPv6 {
		return BothFamilies, 0
	}
	return IPv4, 0
}

// families are those that the namespace can speak to others in.
func (o *Options) families() (f Families) {
	for _, a := range o.Addresses {
		if a = a.Unmap(); a.IsLoopback() || a.IsLinkLocalUnicast() || !a.IsValid() || a == PassthroughIPv6.Addr() {
			continue
		}
		f |= familyOf(a)
	}
	return f
}

func familyOf(a netip.Addr) Families {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Warnings are what a person ought to know of options that are allowed.
func (o *Options) Warnings() []string {
	var w []string
	captured, refused := o.capture()
	if o.families() == BothFamilies && (captured|refused)&IPv6 == 0 {
		w = append(w, "IPv6 traffic bypasses the proxy: the namespace has addresses of both families and dual stack is off; "+
			"set --dual-stack if the mesh is dual stack, or --ipv6 reject to refuse it")
	}
	if !o.InboundPorts.All && len(o.InboundPorts.Listed) > 0 && len(o.InboundExcludePorts) > 0 {
		w = append(w, "--"+flagInboundExclude+" has no effect beside a list of ports: it takes ports away from \"*\" only")
	}
	if o.RedirectDNS && !o.CaptureAllDNS && len(o.DNSServers) == 0 {
		w = append(w, "DNS is not captured: resolv.conf names no resolver; set --"+flagCaptureAllDNS+" to capture every resolver's")
	}
	if o.RedirectDNS && o.excludesDNS() {
		w = append(w, "DNS is not captured: --"+flagOutboundExclude+" excludes port 53")
	}
	if o.RedirectDNS && len(o.VirtualInterfaces) > 0 && !o.resolverIsOpen(captured) {
		w = append(w, "DNS of what is behind --"+flagVirtual+" is not captured: the agent's resolver does not listen there; set "+
			envResolver+" to \":15053\" for it too, and have DNS_ALLOW_FROM name who asks")
	}
	if o.RedirectDNS && captured&IPv6 == 0 && slices.ContainsFunc(o.DNSServers, netip.Addr.Is6) && !o.CaptureAllDNS {
		w = append(w, "questions to resolvers with IPv6 addresses are not captured, as IPv6 is not")
	}
	return w
}

// resolverIsOpen tells whether the agent's resolver listens at every address of the families.
func (o *Options) resolverIsOpen(of Families) bool {
	host, _, err := net.SplitHostPort(o.ResolverAddress)
	return err == nil && (host == "" || host == "::" || host == "0.0.0.0" && of&IPv6 == 0)
}

func (o *Options) excludesDNS() bool {
	return slices.ContainsFunc(o.OutboundExcludePorts, func(p PortRange) bool { return p.Contains(53) })
}

func joined[T any](list []T, text func(T) string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = text(v)
	}
	return strings.Join(parts, ",")
}
