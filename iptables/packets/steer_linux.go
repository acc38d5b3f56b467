package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// steerTable holds the rules that lead the Lab's packets, and nobody else's, to the Lab's sockets.
const steerTable = "pilotfish_packets"

// afterNAT is when they are led: what destination they have then is what redirection gave them.
const afterNAT = nftables.ChainPriority(-90)

// steering leads packets that arrive at the namespace, wherever they would end up, to sockets of the Lab. The kernel takes
// the rules away with the process.
type steering struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// lane is one kind of packet and the socket that it is led to.
type lane struct {
	family      iptables.Families
	protocol    byte
	transparent bool // those with the mark of transparent proxying, or those without
	port        uint16
}

// steer is called on a thread in the namespace. ports are the source ports of the Lab's packets, by protocol.
func steer(lanes []lane, mark iptables.Mark, ports map[byte][]uint16) (*steering, error) {
	s := &steering{}
	var raw *netlink.Conn
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error { raw = c; return nil }))
	if err != nil {
		return nil, permission("a netlink socket for nftables", err)
	}
	s.conn, s.table = conn, &nftables.Table{Family: nftables.TableFamilyINet, Name: steerTable}
	if err := s.install(raw, lanes, mark, ports); err != nil {
		return nil, errors.Join(permission("lead test packets aside by nftables", err), s.Close())
	}
	return s, nil
}

func (s *steering) install(raw *netlink.Conn, lanes []lane, mark iptables.Mark, ports map[byte][]uint16) error {
	if err := ownedTable(raw, s.table); err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	chain := s.conn.AddChain(&nftables.Chain{
		Name: "arrived", Table: s.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(afterNAT), Policy: &accept,
	})
	for _, protocol := range []byte{protocolTCP, protocolUDP} {
		if len(ports[protocol]) == 0 {
			continue
		}
		set := &nftables.Set{Table: s.table, Name: fmt.Sprintf("sources_%d", protocol), KeyType: nftables.TypeInetService}
		if err := s.conn.AddSet(set, elements(ports[protocol])); err != nil {
			return err
		}
		for _, l := range lanes {
			if l.protocol != protocol {
				continue
			}
			for _, link := range []string{"lo", nearLink} {
				s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: l.rule(link, mark, set)})
			}
		}
	}
	return s.conn.Flush()
}

func elements(ports []uint16) []nftables.SetElement {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	var all []nftables.SetElement
	for _, p := range slices.Compact(ports) {
		all = append(all, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(p)})
	}
	return all
}

func (l lane) rule(link string, mark iptables.Mark, sources *nftables.Set) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	family, loopback := byte(unix.NFPROTO_IPV4), loopback4.AsSlice()
	if l.family == iptables.IPv6 {
		family, loopback = unix.NFPROTO_IPV6, loopback6.AsSlice()
	}
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(name),
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{l.protocol}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: sources.Name, SetID: sources.ID},
	}
	if mark != (iptables.Mark{}) {
		is := expr.CmpOpNeq
		if l.transparent {
			is = expr.CmpOpEq
		}
		e = append(e, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mark.Mask), Xor: make([]byte, 4)},
			&expr.Cmp{Op: is, Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark.Value & mark.Mask)})
	}
	return append(e,
		&expr.Immediate{Register: 1, Data: loopback},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(l.port)},
		&expr.TProxy{Family: family, TableFamily: unix.NFPROTO_INET, RegAddr: 1, RegPort: 2},
		&expr.Verdict{Kind: expr.VerdictAccept})
}

func equal(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func (s *steering) Close() error {
	s.conn.DelTable(s.table)
	err := s.conn.Flush()
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(err, s.conn.CloseLasting())
}

// ownedTable makes a table that the kernel takes away when the socket closes (Linux 5.12), or one that stays. What an
// earlier one left is replaced. The library has no words for the flag.
func ownedTable(conn *netlink.Conn, t *nftables.Table) error {
	const owner = 2 // NFT_TABLE_F_OWNER
	err := newTable(conn, t, owner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = newTable(conn, t, 0)
	}
	return err
}

func newTable(conn *netlink.Conn, t *nftables.Table, flags uint32) error {
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(t.Name + "\x00")}
	named, err := netlink.MarshalAttributes([]netlink.Attribute{name})
	if err != nil {
		return err
	}
	flagged, err := netlink.MarshalAttributes([]netlink.Attribute{name,
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)}})
	if err != nil {
		return err
	}
	begin := netlink.Message{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
		Data: []byte{0, 0, unix.NFNL_SUBSYS_NFTABLES >> 8, unix.NFNL_SUBSYS_NFTABLES & 255}}
	end := begin
	end.Header.Type = unix.NFNL_MSG_BATCH_END
	batch := []netlink.Message{
		begin,
		tableMessage(unix.NFT_MSG_NEWTABLE, netlink.Create, t.Family, named), // so that there is one to delete
		tableMessage(unix.NFT_MSG_DELTABLE, 0, t.Family, named),
		tableMessage(unix.NFT_MSG_NEWTABLE, netlink.Create, t.Family, flagged),
		end,
	}
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	for range batch[1 : len(batch)-1] {
		_, received := conn.Receive()
		err = errors.Join(err, received)
	}
	return err
}

func tableMessage(kind uint16, flags netlink.HeaderFlags, family nftables.TableFamily, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | netlink.Acknowledge | flags,
		},
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}
