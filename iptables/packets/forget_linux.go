package packets

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// connection is what a Lab began, as the kernel's table of connections has it.
type connection struct {
	flow
	to netip.AddrPort
}

// remember notes what there is to forget.
func (s *session) remember() {
	if s.sent == nil {
		s.sent = map[connection]bool{}
	}
	for f, a := range s.byPort {
		s.sent[connection{f, a.packet.Destination}] = true
	}
}

// forget takes what the kernel remembers of the Lab's connections out of its table, where it would stay for up to half a
// minute. It is best effort: the kernel forgets by itself.
func (l *Lab) forget() {
	if len(l.sent) == 0 {
		return
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, _ = l.world.netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, sent(l.sent))
	}
}

type sent map[connection]bool

// MatchConntrackFlow is what the library asks.
func (s sent) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	return s[connection{flow{f.Forward.Protocol, f.Forward.SrcPort}, netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)}]
}
