package packettest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// pollInterval is the interval at which pollSets reads the sets of dropped packets.
const pollInterval = 3 * time.Millisecond

// egressFilter records and drops test packets that would leave the namespace through a real interface. They thus do not
// reach a network.
type egressFilter struct {
	sets []droppedSet
}

// droppedSet is an nftables set that records dropped packets: source port, destination address and destination port.
type droppedSet struct {
	family   iptables.Families
	protocol byte
	set      *nftables.Set
}

// install adds the rules to the table. They run after redirection and before source NAT.
func (s *egressFilter) install(conn *nftables.Conn, table *nftables.Table, testedInterfaces []*testedInterface) error {
	if len(testedInterfaces) == 0 {
		return nil
	}
	accept := nftables.ChainPolicyAccept
	chain := conn.AddChain(&nftables.Chain{
		Name: "leaves", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		address := nftables.TypeIPAddr
		if f == iptables.IPv6 {
			address = nftables.TypeIP6Addr
		}
		for _, protocol := range []byte{protocolTCP, protocolUDP} {
			set := &nftables.Set{Table: table, Name: fmt.Sprintf("left_%d_%d", f, protocol), Dynamic: true, Concatenation: true, Size: 65535,
				KeyType: nftables.MustConcatSetType(nftables.TypeInetService, address, nftables.TypeInetService)}
			if err := conn.AddSet(set, nil); err != nil {
				return err
			}
			s.sets = append(s.sets, droppedSet{f, protocol, set})
		}
	}
	for _, p := range testedInterfaces {
		for _, n := range s.sets {
			if e, has := p.families[n.family]; has {
				conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: n.rule(p.link.Attrs().Name, e.near)})
			}
		}
		// Drop packets that would leave through other interfaces than lo and the harness's link.
		for f, e := range p.families {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchSource(f, e.near),
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: linkName("lo")},
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: linkName(nearLink)},
				&expr.Verdict{Kind: expr.VerdictDrop})})
		}
	}
	return nil
}

// rule returns the expressions that record and drop packets with this source address that leave through the link.
func (n droppedSet) rule(link string, source netip.Addr) []expr.Any {
	e := append(matchSource(n.family, source),
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, matchEqual(linkName(link)),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, matchEqual([]byte{n.protocol}))
	const first = unix.NFT_REG32_00
	offset, length := uint32(16), uint32(4)
	if n.family == iptables.IPv6 {
		offset, length = 24, 16
	}
	return append(e,
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
		&expr.Payload{DestRegister: first + 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Payload{DestRegister: first + 1 + length/4, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Dynset{SrcRegKey: first, SetName: n.set.Name, SetID: n.set.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD)},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

// matchSource returns the expressions that match a source address.
func matchSource(f iptables.Families, source netip.Addr) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if f == iptables.IPv6 {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, matchEqual([]byte{family}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(source.BitLen() / 8)}, matchEqual(source.AsSlice()),
	}
}

// read returns the destinations of the dropped packets, by source port.
func (n droppedSet) read(conn *nftables.Conn) (all map[uint16]netip.AddrPort, err error) {
	elements, err := conn.GetSetElements(n.set)
	if err != nil {
		return nil, fmt.Errorf("reading the dropped packets: %w", err)
	}
	all = map[uint16]netip.AddrPort{}
	for _, e := range elements {
		if len(e.Key) < 12 {
			continue
		}
		address, ok := netip.AddrFromSlice(e.Key[4 : len(e.Key)-4])
		if ok {
			all[binary.BigEndian.Uint16(e.Key)] = netip.AddrPortFrom(address, binary.BigEndian.Uint16(e.Key[len(e.Key)-4:]))
		}
	}
	return all, nil
}

// pollSets completes the attempts whose packets were dropped by egressFilter or whose replies arrived. It returns when ctx
// ends.
func (s *session) pollSets(ctx context.Context) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := s.steering.replies.read(s.steering.conn, s.handleReply); err != nil {
			s.cfg.Log.Debug("replies to test packets cannot be read", "error", err)
			return
		}
		for _, n := range s.steering.egress.sets {
			all, err := n.read(s.steering.conn)
			if err != nil {
				s.cfg.Log.Debug("test packets that leave through interfaces cannot be read", "error", err)
				return
			}
			for port, to := range all {
				if a, ok := s.byPort[flow{n.protocol, port}]; ok && !a.packet.Inbound {
					a.finish(Arrival{Where: Outside, At: to})
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
