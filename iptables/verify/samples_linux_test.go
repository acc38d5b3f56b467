package verify

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// The annotations of a pod determine the work of its verification, so the work must be limited.
func TestLongestListsStayWithinWorkLimit(t *testing.T) {
	rules := compile(t, func(o *iptables.Options) {
		for i := range 1024 {
			o.OutboundExcludeCIDRs = append(o.OutboundExcludeCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i), 0}), 24))
			o.OutboundPorts = append(o.OutboundPorts, iptables.PortRange{First: uint16(2*i + 1), Last: uint16(2*i + 1)})
			o.ExcludeInterfaces = append(o.ExcludeInterfaces, fmt.Sprint("net", i))
		}
	})
	at := endpoints{link: "near0", own: map[iptables.Families]netip.Addr{}, near: map[iptables.Families]netip.Addr{}, far: map[iptables.Families]netip.Addr{}}
	for f, net := range map[iptables.Families]string{iptables.IPv4: "198.18.0.%d", iptables.IPv6: "fd00::%d"} {
		at.own[f] = netip.MustParseAddr(fmt.Sprintf(net, 1))
		at.near[f] = netip.MustParseAddr(fmt.Sprintf(net, 2))
		at.far[f] = netip.MustParseAddr(fmt.Sprintf(net, 3))
	}
	s := newSampler(rules, at, packettest.Sender{AnyUser: true})
	if all, left := s.samples(t.Context()); left == 0 || len(all) > maxSamples {
		t.Errorf("%d packets, and %d rules left", len(all), left)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if all, left := s.findSamples(over); left != countRules(rules) || len(all) != 0 {
		t.Errorf("after the context ended: %d packets, and %d of %d rules left", len(all), left, countRules(rules))
	}
}
