package iptables

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Interception is the method by which the kernel delivers inbound connections to Envoy.
type Interception string

// The interception modes.
const (
	// RedirectMode rewrites the destination. The application sees Envoy's address as the source.
	RedirectMode Interception = "REDIRECT"
	// TProxyMode leaves the packet unchanged. The application sees the client's address as the source.
	TProxyMode Interception = "TPROXY"
)

// IPv6Policy specifies how IPv6 traffic is handled.
type IPv6Policy string

// The policies for IPv6. They have no effect if dual stack is configured, because IPv6 is then captured.
const (
	// IPv6Auto captures IPv6 if the namespace has IPv6 addresses and no IPv4 addresses. Otherwise IPv6 traffic passes,
	// because in a mesh without dual stack, Envoy listens only on IPv4.
	IPv6Auto    IPv6Policy = "auto"
	IPv6Capture IPv6Policy = "capture"
	IPv6Reject  IPv6Policy = "reject" // traffic that would be captured is rejected
	IPv6Pass    IPv6Policy = "pass"   // IPv6 is not inspected
)

// Options specify a rule set. The zero value is not usable; start with DefaultOptions.
type Options struct {
	ProxyPort   uint16 // destination of outbound connections
	InboundPort uint16 // destination of inbound connections
	TunnelPort  uint16 // Envoy's HBONE listener; connections to it are not redirected
	DNSPort     uint16 // port of the agent's DNS resolver

	// ProxyUIDs and ProxyGIDs are the users and groups of Envoy and the agent. Their connections are not captured.
	ProxyUIDs []uint32
	ProxyGIDs []uint32

	Interception Interception
	TProxyMark   uint32
	TProxyTable  int

	InboundPorts        Ports // captured inbound ports
	InboundExcludePorts []PortRange

	OutboundCIDRs        CIDRs // captured destinations
	OutboundExcludeCIDRs []netip.Prefix
	OutboundPorts        []PortRange // captured at any destination address
	OutboundExcludePorts []PortRange

	ExcludeInterfaces []string // their traffic is not captured in either direction
	VirtualInterfaces []string // traffic that arrives from them is treated as outbound: virtual machines, nested containers

	OwnerGroups        Groups // groups whose processes' outbound traffic is captured
	ExcludeOwnerGroups []uint32

	RedirectDNS   bool
	CaptureAllDNS bool         // redirect queries to any resolver; otherwise only those to DNSServers
	DNSServers    []netip.Addr // usually the servers in resolv.conf
	// ResolverAddress is the host:port on which the agent's resolver listens; "" means localhost. DNS of virtual machines
	// is captured only if the resolver listens on all addresses: the kernel redirects their queries to the address of the
	// incoming interface.
	ResolverAddress string

	DropInvalid bool
	// LoopbackCIDR is the part of 127.0.0.0/8 that the application uses. Connections to it are not redirected.
	LoopbackCIDR netip.Prefix

	DualStack bool
	IPv6      IPv6Policy
	// Addresses lists the namespace's addresses. IPv6Auto uses them to decide whether IPv6 is captured.
	Addresses []netip.Addr

	notes []string // warnings about tolerated values
}

// DefaultOptions returns the defaults of Istio's command. They capture only the proxy's calls to its own pod.
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

// Ports selects ports: all, or the listed ones.
type Ports struct {
	All    bool
	Listed []PortRange
}

// CIDRs selects addresses: all, or the listed ones.
type CIDRs struct {
	All    bool
	Listed []netip.Prefix
}

// Groups selects groups of processes: all, or the listed ones.
type Groups struct {
	All    bool
	Listed []uint32
}

// String returns "80" for one port, or "80-90" for several.
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Contains reports whether the port is in the range.
func (p PortRange) Contains(port uint16) bool { return p.First <= port && port <= p.Last }

// capture returns the address families whose traffic is captured, and those whose traffic is rejected. Traffic of other
// families passes.
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

// families returns the address families of the namespace's addresses. It ignores loopback and link-local addresses.
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

// Warnings returns notes for users about valid but questionable options.
func (o *Options) Warnings() []string {
	w := slices.Clone(o.notes)
	captured, refused := o.capture()
	if o.families() == BothFamilies && (captured|refused)&IPv6 == 0 {
		w = append(w, "IPv6 traffic bypasses the proxy: the namespace has addresses of both families and dual stack is off; "+
			"set --dual-stack if the mesh is dual stack, or --ipv6 reject to reject IPv6")
	}
	if !o.InboundPorts.All && len(o.InboundPorts.Listed) > 0 && len(o.InboundExcludePorts) > 0 {
		w = append(w, "--"+flagInboundExclude+" has no effect: it is used only if --"+flagInbound+" is \"*\"")
	}
	if o.RedirectDNS && !o.CaptureAllDNS && len(o.DNSServers) == 0 {
		w = append(w, "DNS is not captured: resolv.conf does not list a resolver; set --"+flagCaptureAllDNS+" to capture queries to any resolver")
	}
	if o.RedirectDNS && o.excludesDNS() {
		w = append(w, "DNS is not captured: --"+flagOutboundExclude+" excludes port 53")
	}
	if o.RedirectDNS && len(o.VirtualInterfaces) > 0 && !o.resolverIsOpen(captured) {
		w = append(w, "DNS from the interfaces of --"+flagVirtual+" is not captured: the agent's resolver does not listen on their addresses; set "+
			envResolver+" to \":15053\" here and for the agent, and add the clients' network to the agent's DNS_ALLOW_FROM")
	}
	if o.RedirectDNS && captured&IPv6 == 0 && slices.ContainsFunc(o.DNSServers, netip.Addr.Is6) && !o.CaptureAllDNS {
		w = append(w, "DNS queries to resolvers with IPv6 addresses are not captured, because IPv6 is not captured")
	}
	return w
}

// resolverIsOpen reports whether the agent's resolver listens on all local addresses of these families.
func (o *Options) resolverIsOpen(families Families) bool {
	host, _, err := net.SplitHostPort(o.ResolverAddress)
	return err == nil && (host == "" || host == "::" || host == "0.0.0.0" && families&IPv6 == 0)
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
