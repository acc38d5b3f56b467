package mesh

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// datagramsTable is beside the table of what is captured, which has nothing to do with UDP but for DNS.
const datagramsTable = "pilotfish-datagrams"

// dnsPort is left out: questions are the sidecar's, whatever address they are sent to.
const dnsPort = 53

// datagramLeads are those of one workload's network.
type datagramLeads struct {
	space *netns.Namespace
	led   []controlplane.DatagramPort
}

// lead has the kernel send what a workload sends to a service's address on to one of its instances, in the
// workload's own network, so that it arrives from the workload's address. One sender's datagrams go to one instance, for as
// long as it is there.
func (l *datagramLeads) lead(ports []controlplane.DatagramPort) error {
	if err := l.space.Filter(func(c *nftables.Conn) { addLeads(c, ports) }); err != nil {
		return err
	}
	if err := forgetDatagrams(l.space, l.led, ports); err != nil {
		return err
	}
	l.led = ports
	return nil
}

func addLeads(c *nftables.Conn, ports []controlplane.DatagramPort) {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: datagramsTable}
	c.AddTable(table) // so that there is one to take away
	c.DelTable(table)
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Name: "services", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1),
	})
	for _, p := range ports {
		if p.Address.Port() == dnsPort {
			continue
		}
		for nth, endpoint := range p.Endpoints {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: leadTo(p.Address, endpoint, uint32(len(p.Endpoints)-nth))})
		}
	}
}

// leadTo takes one in so many new senders to an endpoint.
func leadTo(service, endpoint netip.AddrPort, oneIn uint32) []expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if service.Addr().Is6() {
		family = unix.NFPROTO_IPV6
	}
	to := netip.PrefixFrom(service.Addr(), service.Addr().BitLen())
	return append(boundFor(unix.IPPROTO_UDP, to, false),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(service.Port())},
		&expr.Numgen{Register: 1, Modulus: oneIn, Type: unix.NFT_NG_RANDOM},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Immediate{Register: 1, Data: endpoint.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(endpoint.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	)
}

// forgetDatagrams has senders whose instance is gone find another, and nobody where the service is: the kernel decides
// once for each.
func forgetDatagrams(n *netns.Namespace, before, ports []controlplane.DatagramPort) error {
	stale := staleSenders{}
	for _, p := range before {
		stale[p.Address] = nil
	}
	for _, p := range ports {
		stale[p.Address] = map[netip.AddrPort]bool{}
		for _, e := range p.Endpoints {
			stale[p.Address][e] = true
		}
	}
	err := n.Netlink(func(h *netlink.Handle) error {
		_, err4 := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, stale)
		_, err6 := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET6, stale)
		return errors.Join(err4, err6)
	}, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("what the kernel remembers of senders: %w", err)
	}
	return nil
}

// staleSenders matches what is remembered of datagrams to services that go where those are not served: service → endpoints.
type staleSenders map[netip.AddrPort]map[netip.AddrPort]bool

// MatchConntrackFlow says whether to forget a flow.
func (s staleSenders) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(f.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	endpoints, ours := s[netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)]
	return ours && !endpoints[netip.AddrPortFrom(from.Unmap(), f.Reverse.SrcPort)]
}
