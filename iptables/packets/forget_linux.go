package packets

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// forget takes what the kernel remembers of the session's connections out of its table, where it would stay for up to half
// a minute. It is best effort: the kernel forgets by itself.
func (s *session) forget() {
	for _, f := range s.Families() {
		family := netlink.InetFamily(unix.AF_INET)
		if f == iptables.IPv6 {
			family = unix.AF_INET6
		}
		_, _ = s.world.netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, ours{s})
	}
}

// ours are connections that the session began.
type ours struct{ *session }

// MatchConntrackFlow is what the library asks.
func (o ours) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	a, ok := o.byPort[flow{f.Forward.Protocol, f.Forward.SrcPort}]
	if !ok {
		return false
	}
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	return netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort) == a.packet.Destination
}
