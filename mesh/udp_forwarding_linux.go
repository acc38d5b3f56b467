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

// udpTable is the nftables table of the forwarding rules. The redirection rules have another table, and do not redirect
// UDP except DNS.
const udpTable = "pilotfish-datagrams"

// udpForwarder manages the UDP rules of one workload's network namespace.
type udpForwarder struct {
	namespace *netns.Namespace
	current   []controlplane.ForwardedPort
}

// update installs DNAT rules from services' addresses to their endpoints in the workload's namespace, so that packets
// have the workload's source address. All packets of one sender have the same endpoint as destination as long as that
// endpoint exists.
func (l *udpForwarder) update(ports []controlplane.ForwardedPort) error {
	if err := l.namespace.Nftables(func(c *nftables.Conn) { addDNATRules(c, ports) }); err != nil {
		return err
	}
	if err := deleteStaleFlows(l.namespace, l.current, ports); err != nil {
		return err
	}
	l.current = ports
	return nil
}

func addDNATRules(c *nftables.Conn, ports []controlplane.ForwardedPort) {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: udpTable}
	c.AddTable(table) // creates the table if it is missing, so that its deletion succeeds
	c.DelTable(table)
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Name: "services", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1),
	})
	// The kernel evaluates this chain only for connections that the redirection rules have not redirected.
	streams := c.AddChain(&nftables.Chain{
		Name: "unredirected", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 1),
	})
	for _, p := range ports {
		if p.Address.Port() == dnsPort { // the sidecar answers DNS queries to any address
			continue
		}
		to, protocol := chain, byte(unix.IPPROTO_UDP)
		if p.TCP {
			to, protocol = streams, unix.IPPROTO_TCP
		}
		for nth, endpoint := range p.Endpoints {
			c.AddRule(&nftables.Rule{Table: table, Chain: to, Exprs: dnatRule(protocol, p.Address, endpoint, uint32(len(p.Endpoints)-nth))})
		}
	}
}

// dnatRule returns a rule that redirects one in oneIn new flows, chosen at random, to an endpoint.
func dnatRule(protocol byte, service, endpoint netip.AddrPort, oneIn uint32) []expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if service.Addr().Is6() {
		family = unix.NFPROTO_IPV6
	}
	to := netip.PrefixFrom(service.Addr(), service.Addr().BitLen())
	return append(matchDestination(protocol, to, false),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(service.Port())},
		&expr.Numgen{Register: 1, Modulus: oneIn, Type: unix.NFT_NG_RANDOM},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Immediate{Register: 1, Data: endpoint.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(endpoint.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	)
}

// deleteStaleFlows deletes conntrack entries of senders whose endpoint no longer exists. The kernel evaluates DNAT
// rules only for a new entry.
func deleteStaleFlows(n *netns.Namespace, before, ports []controlplane.ForwardedPort) error {
	stale := staleFlows{}
	for _, p := range before {
		if !p.TCP {
			stale[p.Address] = nil
		}
	}
	for _, p := range ports {
		if p.TCP {
			continue // TCP connections end by themselves
		}
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
		return fmt.Errorf("deleting conntrack entries: %w", err)
	}
	return nil
}

// staleFlows matches the UDP flows to a service whose packets no longer have a valid endpoint as destination. It maps
// each service's address to the service's valid endpoints.
type staleFlows map[netip.AddrPort]map[netip.AddrPort]bool

// MatchConntrackFlow reports whether a flow must be deleted.
func (s staleFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
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
