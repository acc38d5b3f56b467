package packets

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/owned"
)

// steerTable holds the rules that lead the Lab's packets, and nobody else's, to the Lab's sockets.
const steerTable = "pilotfish_packets"

// afterNAT is when they are led: what destination they have then is what redirection gave them.
const afterNAT = nftables.ChainPriority(-90)

// steering leads packets that arrive at the namespace, wherever they would end up, to sockets of the Lab. The kernel takes
// the rules away with the process.
type steering struct {
	conn    *nftables.Conn
	table   *nftables.Table
	stops   stops
	answers answers
}

// lane is one kind of packet and the socket that it is led to.
type lane struct {
	family      iptables.Families
	protocol    byte
	transparent bool // those with the mark of transparent proxying, or those without
	port        uint16
}

// steer is called on a thread in the namespace. ports are the source ports of the Lab's packets, by protocol.
func steer(lanes []lane, mark iptables.Mark, ports map[byte][]uint16, passages []*passage, answered []uint16) (*steering, error) {
	conn, table, err := owned.Table(steerTable)
	if err != nil {
		return nil, permission("lead test packets aside, by nftables", err)
	}
	s := &steering{conn: conn, table: table}
	if err := s.install(lanes, mark, ports, passages, answered); err != nil {
		return nil, errors.Join(permission("lead test packets aside, by nftables", err), s.Close())
	}
	return s, nil
}

func (s *steering) install(lanes []lane, mark iptables.Mark, ports map[byte][]uint16, passages []*passage, answered []uint16) error {
	if err := s.stops.install(s.conn, s.table, passages); err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	chain := s.conn.AddChain(&nftables.Chain{
		Name: "arrived", Table: s.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(afterNAT), Policy: &accept,
	})
	if err := s.answers.install(s.conn, chain, answered); err != nil {
		return err
	}
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
			for _, p := range passages { // others come in by these too
				if e, has := p.families[l.family]; has {
					s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain,
						Exprs: append(from(l.family, e.far), l.rule(p.link.Attrs().Name, mark, set)...)})
				}
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
	family, loopback := byte(unix.NFPROTO_IPV4), loopback4.AsSlice()
	if l.family == iptables.IPv6 {
		family, loopback = unix.NFPROTO_IPV6, loopback6.AsSlice()
	}
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(linkName(link)),
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

func (s *steering) Close() error { return owned.Close(s.conn, s.table) }
