package packettest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/ownedtable"
)

// steerTable is the nftables table whose rules divert test packets to the harness's sockets.
const steerTable = "pilotfish_packets"

// afterNAT is the priority of the rules that divert test packets. They run after destination NAT, so they see the
// destination that redirection set.
const afterNAT = nftables.ChainPriority(-90)

// ruleSet contains the nftables rules that divert test packets for any port of the namespace to sockets of the harness.
// The kernel removes the rules when the process exits.
type ruleSet struct {
	conn    *nftables.Conn
	table   *nftables.Table
	egress  egressFilter
	replies replyTracker
}

// socketKey identifies packets of one kind, and the port of the socket to which they are diverted.
type socketKey struct {
	family      iptables.Families
	protocol    byte
	transparent bool // whether the packets have the TPROXY mark
	port        uint16
}

// installSteering installs the rules. ports lists the source ports of the test packets, by protocol. answered lists
// the source ports of datagrams to which the far end replies. It must be called on a thread in the namespace.
func installSteering(socketKeys []socketKey, mark iptables.Mark, ports map[byte][]uint16, testedInterfaces []*testedInterface, answered []uint16) (*ruleSet, error) {
	conn, table, err := ownedtable.Table(steerTable)
	if err != nil {
		return nil, permission("installing nftables rules for test packets", err)
	}
	s := &ruleSet{conn: conn, table: table}
	if err := s.install(socketKeys, mark, ports, testedInterfaces, answered); err != nil {
		return nil, errors.Join(permission("installing nftables rules for test packets", err), s.Close())
	}
	return s, nil
}

func (s *ruleSet) install(socketKeys []socketKey, mark iptables.Mark, ports map[byte][]uint16, testedInterfaces []*testedInterface, answered []uint16) error {
	if err := s.egress.install(s.conn, s.table, testedInterfaces); err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	chain := s.conn.AddChain(&nftables.Chain{
		Name: "arrived", Table: s.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(afterNAT), Policy: &accept,
	})
	if err := s.replies.install(s.conn, chain, answered); err != nil {
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
		for _, l := range socketKeys {
			if l.protocol != protocol {
				continue
			}
			for _, link := range []string{"lo", nearLink} {
				s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: l.rule(link, mark, set)})
			}
			// Other packets arrive through these interfaces too, so the rule also matches the source address.
			for _, p := range testedInterfaces {
				if e, has := p.families[l.family]; has {
					s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain,
						Exprs: append(matchSource(l.family, e.far), l.rule(p.link.Attrs().Name, mark, set)...)})
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

func (l socketKey) rule(link string, mark iptables.Mark, sources *nftables.Set) []expr.Any {
	family, loopback := byte(unix.NFPROTO_IPV4), loopback4.AsSlice()
	if l.family == iptables.IPv6 {
		family, loopback = unix.NFPROTO_IPV6, loopback6.AsSlice()
	}
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, matchEqual(linkName(link)),
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, matchEqual([]byte{family}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, matchEqual([]byte{l.protocol}),
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

func matchEqual(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func (s *ruleSet) Close() error { return ownedtable.Close(s.conn, s.table) }
