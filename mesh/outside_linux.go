package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// outsidePort is where the bridge's namespace catches connections that leave the mesh.
const outsidePort = 15099

// openOutside lets workloads reach what this process reaches: what is bound for an address that is not of the mesh ends
// at the bridge, and goes on from this process, in whose network it is made anew. That takes no address, route or rule
// there. Only TCP gets through, and questions for names.
func (p *capturedPlacement) openOutside() error {
	bridge4, bridge6 := p.plan.bridge()
	if err := catchOutgoing(p.bridge.Namespace, p.plan); err != nil {
		return fmt.Errorf("catching what leaves the mesh: %w", err)
	}
	for _, at := range []netip.Addr{bridge4, bridge6} {
		l, err := p.bridge.Listen("tcp", netip.AddrPortFrom(at, outsidePort).String())
		if err != nil {
			return fmt.Errorf("catching what leaves the mesh: %w", err)
		}
		p.onRelease(newRelay(l, p.dialOutside).close)
	}
	resolver, err := p.openResolver(netip.AddrPortFrom(bridge4, 53))
	if err != nil {
		return fmt.Errorf("resolving names of outside: %w", err)
	}
	p.onRelease(resolver.close)
	// What nobody carries is refused so, rather than lost. It is of no matter where that cannot be had.
	_ = refuseDatagrams(p.bridge.Namespace, p.plan)
	_ = p.bridge.Set("ipv4/ip_forward", "1")
	_ = p.bridge.Set("ipv6/conf/all/forwarding", "1")
	return nil
}

// dialOutside connects to where a caught connection was going.
func (p *capturedPlacement) dialOutside(ctx context.Context, from net.Conn) (net.Conn, error) {
	to, err := originalDestination(from)
	if err != nil {
		return nil, err
	}
	if virtualServices.Contains(to.Addr()) { // what a sidecar lets by that no service answers to is of no concern to the machine's networks
		return nil, fmt.Errorf("%s is an address that the mesh gives to services: nobody has it", to.Addr())
	}
	if to.Addr() == p.plan.host() {
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", to.String())
}

// soOriginalDst is SO_ORIGINAL_DST of both families (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h).
const soOriginalDst = 80

// originalDestination is where a redirected connection was going.
func originalDestination(conn net.Conn) (to netip.AddrPort, err error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return to, errors.New("not a connection of TCP")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return to, err
	}
	is4 := tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is4()
	var asked error
	err = raw.Control(func(fd uintptr) {
		if is4 {
			to, asked = originalDestination4(int(fd))
		} else {
			to, asked = originalDestination6(int(fd))
		}
	})
	return to, errors.Join(err, asked)
}

// originalDestination4 reads a sockaddr_in by a call for another structure that has room for it.
func originalDestination4(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := got.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
}

func originalDestination6(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, soOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := binaryutil.NativeEndian.PutUint16(got.Addr.Port)
	return netip.AddrPortFrom(netip.AddrFrom16(got.Addr.Addr), uint16(port[0])<<8|uint16(port[1])), nil
}

// catchOutgoing redirects TCP connections that come over the bridge and go to no address of the mesh, or to that of the
// machine.
func catchOutgoing(n *netns.Namespace, plan capturedPlan) error {
	return n.Filter(func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "pilotfish-mesh"})
		chain := c.AddChain(&nftables.Chain{
			Name: "outgoing", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityNATDest,
		})
		for _, to := range []struct {
			prefix netip.Prefix
			other  bool
		}{
			{netip.PrefixFrom(plan.host(), 32), false}, {plan.v4, true}, {plan.v6, true},
		} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(boundFor(unix.IPPROTO_TCP, to.prefix, to.other),
				&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(outsidePort)},
				&expr.Redir{RegisterProtoMin: 1},
			)})
		}
	})
}

// refuseDatagrams has senders know that UDP goes nowhere outside of the mesh, as if nobody listened there: that there is no
// route, a socket takes for a passing trouble, and waits.
func refuseDatagrams(n *netns.Namespace, plan capturedPlan) error {
	return n.Filter(func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "pilotfish-mesh"})
		chain := c.AddChain(&nftables.Chain{
			Name: "datagrams", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityFilter,
		})
		for _, mesh := range []netip.Prefix{plan.v4, plan.v6} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(boundFor(unix.IPPROTO_UDP, mesh, true),
				&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
			)})
		}
	})
}

// boundFor is what goes to the addresses by a protocol, or to all others of their family.
func boundFor(protocol byte, prefix netip.Prefix, other bool) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if prefix.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	length := uint32(prefix.Addr().BitLen() / 8)
	op := expr.CmpOpEq
	if other {
		op = expr.CmpOpNeq
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: length,
			Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()), Xor: make([]byte, length),
		},
		&expr.Cmp{Op: op, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}

// dial connects from a workload's place as its application does, by the same resolver, which is captured too.
func (at *place) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return at.space.Dial(ctx, network, address)
	}
	addresses, err := at.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addresses {
		conn, err := at.space.Dial(ctx, network, net.JoinHostPort(a, port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%s: %w", strings.Join(addresses, ", "), errors.Join(errs...))
}
