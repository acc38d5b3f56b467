package trace

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/ownedtable"
)

// Chain priorities: before, or after, the chains of all other programs.
const (
	before = nftables.ChainPriority(-350)
	after  = nftables.ChainPriority(350)
)

// perSecond is the maximum number of packets that each rule selects per second.
const perSecond = 100

// selector is the nftables table whose rules enable tracing for packets.
type selector struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// newSelector installs the nftables table that enables tracing. Call it on a thread in the network namespace that is
// traced.
func newSelector(f Filter) (*selector, error) {
	conn, table, err := ownedtable.Table(traceTable)
	// The table of another trace exists; if privileges were missing, the listing of rules would have failed before.
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("another trace runs in this namespace: wait until it ends, or stop it")
	}
	if err != nil {
		return nil, fmt.Errorf("creating the nftables table for the trace: %w", err)
	}
	s := &selector{conn, table}
	for _, c := range []struct {
		name     string
		hook     *nftables.ChainHook
		priority nftables.ChainPriority
	}{
		{chainSent, nftables.ChainHookOutput, before}, {chainCame, nftables.ChainHookPrerouting, before},
		{chainArrive, nftables.ChainHookInput, after}, {chainLeave, nftables.ChainHookPostrouting, after},
	} {
		accept := nftables.ChainPolicyAccept
		chain := conn.AddChain(&nftables.Chain{Name: c.name, Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: c.hook, Priority: nftables.ChainPriorityRef(c.priority), Policy: &accept})
		if c.priority == before {
			s.choose(chain, f)
		}
	}
	if err := conn.Flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("adding the nftables rules for the trace: %w", err), s.Close())
	}
	return s, nil
}

func (s *selector) Close() error { return ownedtable.Close(s.conn, s.table) }

// choose adds rules to the chain that enable tracing for the packets that the filter matches.
func (s *selector) choose(chain *nftables.Chain, f Filter) {
	if chain.Name == chainCame && f.UID != nil {
		return
	}
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
			if f.allows(family, protocol) {
				s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: f.rule(chain.Name, family, protocol)})
			}
		}
	}
}

func (f *Filter) allows(family byte, protocol iptables.Protocol) bool {
	if f.Protocol != iptables.AnyProtocol && f.Protocol != protocol {
		return false
	}
	for _, p := range []netip.Prefix{f.From, f.To} {
		if p.IsValid() && p.Addr().Is4() != (family == unix.NFPROTO_IPV4) {
			return false
		}
	}
	return true
}

func (f *Filter) rule(chain string, family byte, protocol iptables.Protocol) []expr.Any {
	number := byte(unix.IPPROTO_TCP)
	if protocol == iptables.UDP {
		number = unix.IPPROTO_UDP
	}
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, compare(expr.CmpOpEq, []byte{family}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, compare(expr.CmpOpEq, []byte{number}),
	}
	if chain == chainCame { // for packets on lo, the chain for sent packets has already decided
		e = append(e, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, compare(expr.CmpOpNeq, append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)))
	}
	if f.UID != nil {
		e = append(e, &expr.Meta{Key: expr.MetaKeySKUID, Register: 1}, compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(*f.UID)))
	}
	if f.Port != 0 {
		e = append(e, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(f.Port)))
	}
	e = append(e, matchAddress(f.From, false)...)
	e = append(e, matchAddress(f.To, true)...)
	if protocol == iptables.TCP && !f.All {
		e = append(e, matchSYN()...)
	}
	return append(e,
		&expr.Limit{Type: expr.LimitTypePkts, Rate: perSecond, Unit: expr.LimitTimeSecond, Burst: perSecond},
		&expr.Immediate{Register: 1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1})
}

func compare(op expr.CmpOp, data []byte) *expr.Cmp { return &expr.Cmp{Op: op, Register: 1, Data: data} }

// matchSYN returns the expressions that match the first packet of a TCP connection.
func matchSYN() []expr.Any {
	const syn, ack, rst, fin = 1 << 1, 1 << 4, 1 << 2, 1
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack | rst | fin}, Xor: []byte{0}},
		compare(expr.CmpOpEq, []byte{syn}),
	}
}

func matchAddress(p netip.Prefix, destination bool) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	size := uint32(p.Addr().BitLen() / 8)
	offset := uint32(12)
	if size == 16 {
		offset = 8
	}
	if destination {
		offset += size
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		compare(expr.CmpOpEq, p.Masked().Addr().AsSlice()),
	}
}
