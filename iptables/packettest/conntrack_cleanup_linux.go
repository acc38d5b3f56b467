package packettest

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// connection identifies a conntrack entry of a connection that the harness created.
type connection struct {
	flow
	to netip.AddrPort
}

// recordConnections records the session's connections for deleteConnections.
func (s *session) recordConnections() {
	if s.sent == nil {
		s.sent = map[connection]bool{}
	}
	for f, a := range s.byPort {
		s.sent[connection{f, a.packet.Destination}] = true
	}
}

// deleteConnections deletes the harness's connections from the conntrack table, where they would remain for up to half
// a minute. It ignores errors, because the kernel removes the entries after that time.
func (l *Harness) deleteConnections() {
	if len(l.sent) == 0 {
		return
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, _ = l.veth.netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, connectionFilter(l.sent))
	}
}

type connectionFilter map[connection]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s connectionFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	return s[connection{flow{f.Forward.Protocol, f.Forward.SrcPort}, netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)}]
}
