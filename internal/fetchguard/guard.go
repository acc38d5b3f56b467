// Package fetchguard protects fetches of URLs that configuration documents name, such as Wasm modules and keys of token
// issuers. It rejects connections to addresses that may serve credentials of the machine, and removes the server's text
// from errors.
package fetchguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// ErrBlocked is wrapped by the errors of connections that a Guard rejects.
var ErrBlocked = errors.New("fetches from this address are blocked")

// metadata contains the addresses of cloud metadata services that are not link-local. Link-local addresses are always
// blocked.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
}

// embedding contains the prefixes of IPv6 addresses that contain an IPv4 address. offset is the index of the first byte
// of the IPv4 address.
var embedding = []struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // SIIT
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
}

// Guard determines from which addresses the program may fetch. The zero value blocks link-local, unspecified, multicast
// and metadata addresses. It is safe for concurrent use.
type Guard struct {
	// Blocked contains additional networks that are blocked.
	Blocked []netip.Prefix
	// NoLoopback blocks loopback addresses, too.
	NoLoopback bool
}

// Check returns an error that wraps ErrBlocked if the address is blocked.
func (g Guard) Check(address netip.Addr) error {
	ip := address.Unmap().WithZone("")
	if ip != netip.IPv6Loopback() {
		for _, e := range embedding {
			if e.prefix.Contains(ip) {
				bytes := ip.As16()
				return g.Check(netip.AddrFrom4([4]byte(bytes[e.offset : e.offset+4])))
			}
		}
	}
	in := func(p netip.Prefix) bool { return p.Contains(ip) }
	switch {
	case !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || slices.ContainsFunc(metadata, in):
		return fmt.Errorf("%w: %s is a link-local, metadata, multicast or unspecified address", ErrBlocked, ip)
	case g.NoLoopback && ip.IsLoopback():
		return fmt.Errorf("%w: %s is a loopback address", ErrBlocked, ip)
	case slices.ContainsFunc(g.Blocked, in):
		return fmt.Errorf("%w: %s is in a blocked network", ErrBlocked, ip)
	}
	return nil
}

// Control is a function for net.Dialer.ControlContext. net.Dialer calls it with the resolved address before each
// connection, including those of redirects.
func (g Guard) Control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s is not an IP address", ErrBlocked, address)
	}
	return g.Check(to.Addr())
}

// CheckHost checks a host to which an HTTP proxy connects. In this case, Control checks only the proxy's address.
// CheckHost accepts a name that this machine cannot resolve, because the proxy resolves it.
func (g Guard) CheckHost(ctx context.Context, host string) error {
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	for _, ip := range found {
		if err := g.Check(ip); err != nil {
			return err
		}
	}
	return nil
}

// ParseNetworks parses a comma-separated list of networks and single addresses, such as "10.0.0.0/8,192.0.2.1".
func ParseNetworks(list string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if ip, ipErr := netip.ParseAddr(text); ipErr == nil {
			network, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%.100q is not a network: write a comma-separated list of networks, such as 10.0.0.0/8,fd00::/8", text)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}
