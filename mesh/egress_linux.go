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

// egressPort is a port in the bridge's namespace. Connections that leave the mesh are redirected to it.
const egressPort = 15099

// openEgress makes the addresses that this process can reach available to workloads. The kernel redirects connections
// to addresses outside of the mesh to a listener on the bridge. This process forwards them over its own connections.
// The machine's network therefore needs no additional address, route or rule. Only TCP connections and DNS queries are
// forwarded.
func (p *capturedPlacement) openEgress() error {
	bridge4, bridge6 := p.plan.bridgeAddresses()
	if err := redirectEgress(p.bridge.Namespace, p.plan); err != nil {
		return fmt.Errorf("redirecting connections out of the mesh: %w", err)
	}
	for _, at := range []netip.Addr{bridge4, bridge6} {
		l, err := p.bridge.Listen("tcp", netip.AddrPortFrom(at, egressPort).String())
		if err != nil {
			return fmt.Errorf("redirecting connections out of the mesh: %w", err)
		}
		p.onRelease(newTCPForwarder(l, p.dialEgress).close)
	}
	resolver, err := p.startDNS(netip.AddrPortFrom(bridge4, 53))
	if err != nil {
		return fmt.Errorf("starting the DNS server: %w", err)
	}
	p.onRelease(resolver.close)
	// UDP packets to addresses outside of the mesh are rejected, not dropped, so that senders fail immediately. These
	// steps are optional, so their errors are ignored.
	_ = rejectUDP(p.bridge.Namespace, p.plan)
	_ = p.bridge.Set("ipv4/ip_forward", "1")
	_ = p.bridge.Set("ipv6/conf/all/forwarding", "1")
	return nil
}

// dialEgress connects to the original destination of a redirected connection.
func (p *capturedPlacement) dialEgress(ctx context.Context, from net.Conn) (net.Conn, error) {
	to, err := originalDestination(from)
	if err != nil {
		return nil, err
	}
	// A connection to a virtual address without a service must not leave the mesh.
	if serviceAddresses.Contains(to.Addr()) {
		return nil, fmt.Errorf("%s is a virtual address of the mesh, but no service has this address", to.Addr())
	}
	if to.Addr() == p.plan.hostAddress() {
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	}
	if to.Addr().IsLoopback() && to.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		return nil, fmt.Errorf("%s is a loopback address of this machine: use %s", to.Addr(), HostName)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", to.String())
}

// soOriginalDst is SO_ORIGINAL_DST for both families (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h).
const soOriginalDst = 80

// originalDestination returns the destination of a connection before its redirection.
func originalDestination(conn net.Conn) (to netip.AddrPort, err error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return to, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return to, err
	}
	is4 := tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is4()
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		if is4 {
			to, sockErr = originalDestination4(int(fd))
		} else {
			to, sockErr = originalDestination6(int(fd))
		}
	})
	return to, errors.Join(err, sockErr)
}

// originalDestination4 reads the original IPv4 destination as a sockaddr_in. It uses GetsockoptIPv6Mreq only because
// the buffer of that function is large enough.
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

// redirectEgress redirects TCP connections on the bridge to egressPort if their destination is outside of the mesh or
// is the machine's address.
func redirectEgress(n *netns.Namespace, plan addressPlan) error {
	return n.Nftables(func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "pilotfish-mesh"})
		chain := c.AddChain(&nftables.Chain{
			Name: "outgoing", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityNATDest,
		})
		for _, to := range []struct {
			prefix netip.Prefix
			other  bool
		}{
			{netip.PrefixFrom(plan.hostAddress(), 32), false}, {plan.v4, true}, {plan.v6, true},
		} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchDestination(unix.IPPROTO_TCP, to.prefix, to.other),
				&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(egressPort)},
				&expr.Redir{RegisterProtoMin: 1},
			)})
		}
	})
}

// rejectUDP answers UDP packets to addresses outside of the mesh with "port unreachable", so that senders fail
// immediately. With "no route" as the response, senders would retry until a timeout.
func rejectUDP(n *netns.Namespace, plan addressPlan) error {
	return n.Nftables(func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "pilotfish-mesh"})
		chain := c.AddChain(&nftables.Chain{
			Name: "datagrams", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityFilter,
		})
		for _, mesh := range []netip.Prefix{plan.v4, plan.v6} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchDestination(unix.IPPROTO_UDP, mesh, true),
				&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
			)})
		}
	})
}

// matchDestination returns expressions that match packets of protocol to addresses in prefix. If other is true, they
// match packets to addresses of the same family outside of prefix.
func matchDestination(protocol byte, prefix netip.Prefix, other bool) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // offset of the destination in the IP header
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

// dial connects from the sandbox as the application would. It resolves names with the application's resolver, whose
// queries are captured too.
func (sb *sandbox) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return sb.namespace.Dial(ctx, network, address)
	}
	addresses, err := sb.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addresses {
		conn, err := sb.namespace.Dial(ctx, network, net.JoinHostPort(a, port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%s: %w", strings.Join(addresses, ", "), errors.Join(errs...))
}
