package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// interfaceNameSize is the size of the kernel's field for interface names.
const interfaceNameSize = 16

var protocolNumbers = map[iptables.Protocol]byte{iptables.TCP: unix.IPPROTO_TCP, iptables.UDP: unix.IPPROTO_UDP}

var stateBits = map[iptables.State]uint32{
	iptables.Invalid: expr.CtStateBitINVALID, iptables.Established: expr.CtStateBitESTABLISHED,
	iptables.Related: expr.CtStateBitRELATED, iptables.New: expr.CtStateBitNEW,
}

// conditions encodes a match, which is in canonical form, as expressions of a rule.
type conditions struct {
	*writer
	batch *batch
}

// compare adds a comparison of register 1 with the data. If the result is false, the kernel skips the rest of the rule.
func (c *conditions) compare(op expr.CmpOp, data []byte) {
	c.addExpression(&expr.Cmp{Op: op, Register: 1, Data: data})
}

// load adds an expression that loads packet metadata into register 1.
func (w *writer) load(key expr.MetaKey) { w.addExpression(&expr.Meta{Key: key, Register: 1}) }

func equal(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

// match adds the conditions. The conditions that the kernel evaluates fastest are first.
func (c *conditions) match(m iptables.Match) error {
	if err := c.family(m); err != nil {
		return err
	}
	if err := c.transport(m); err != nil {
		return err
	}
	if err := c.interfaces(m); err != nil {
		return err
	}
	c.addresses(m)
	c.ports(m)
	if len(m.UIDs) > 0 {
		c.load(expr.MetaKeySKUID)
		c.matchIDs(keyUID, m.UIDs, m.NotUIDs)
	}
	if len(m.GIDs) > 0 {
		c.load(expr.MetaKeySKGID)
		c.matchIDs(keyGID, m.GIDs, m.NotGIDs)
	}
	if m.Mark != nil {
		c.load(expr.MetaKeyMARK)
		c.mark(*m.Mark, m.NotMark)
	}
	if m.ConnMark != nil {
		c.addExpression(&expr.Ct{Key: expr.CtKeyMARK, Register: 1})
		c.mark(*m.ConnMark, false)
	}
	return c.connection(m)
}

// family adds the condition on the address family. Address conditions need it, because the offset of an address depends on
// the family.
func (c *conditions) family(m iptables.Match) error {
	families := m.Families
	for _, list := range [...][]netip.Prefix{m.Source, m.Destination} {
		for _, p := range list {
			of := familyOf(p)
			if families != 0 && families != of {
				return fmt.Errorf("its addresses have different families: %s", p)
			}
			families = of
		}
	}
	if proto := nfproto(families); proto != 0 {
		c.load(expr.MetaKeyNFPROTO)
		c.compare(expr.CmpOpEq, []byte{proto})
	}
	return nil
}

func familyOf(p netip.Prefix) iptables.Families {
	if p.Addr().Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// nfproto returns the kernel's number (NFPROTO) of a single family; 0 for both families and for none.
func nfproto(f iptables.Families) byte {
	switch f {
	case iptables.IPv4:
		return unix.NFPROTO_IPV4
	case iptables.IPv6:
		return unix.NFPROTO_IPV6
	}
	return 0
}

func (c *conditions) transport(m iptables.Match) error {
	if m.Protocol == iptables.AnyProtocol {
		if len(m.SourcePorts)+len(m.DestinationPorts) > 0 {
			return errors.New("a rule that matches ports must match a protocol")
		}
		return nil
	}
	n, known := protocolNumbers[m.Protocol]
	if !known {
		return fmt.Errorf("protocol %q is neither tcp nor udp", m.Protocol)
	}
	c.load(expr.MetaKeyL4PROTO)
	c.compare(expr.CmpOpEq, []byte{n})
	return nil
}

func (c *conditions) interfaces(m iptables.Match) error {
	for _, name := range []string{m.InInterface, m.OutInterface} {
		if len(name) >= interfaceNameSize {
			return fmt.Errorf("interface %q: names have at most %d characters", name, interfaceNameSize-1)
		}
	}
	if m.InInterface != "" {
		c.load(expr.MetaKeyIIFNAME)
		c.compare(expr.CmpOpEq, interfaceName(m.InInterface))
	}
	if m.OutInterface != "" {
		c.load(expr.MetaKeyOIFNAME)
		c.compare(equal(m.NotOut), interfaceName(m.OutInterface))
	}
	return nil
}

func interfaceName(name string) []byte {
	b := make([]byte, interfaceNameSize)
	copy(b, name)
	return b
}

func (c *conditions) addresses(m iptables.Match) {
	load := func(prefixes []netip.Prefix, v4, v6 uint32) {
		p := expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: v4, Len: 4}
		if prefixes[0].Addr().Is6() {
			p.Offset, p.Len = v6, 16
		}
		c.addExpression(&p)
	}
	if len(m.Source) > 0 {
		load(m.Source, 12, 8)
		c.matchAddresses(m.Source, m.NotSource)
	}
	if len(m.Destination) > 0 {
		load(m.Destination, 16, 24)
		c.matchAddresses(m.Destination, m.NotDestination)
	}
}

func (c *conditions) ports(m iptables.Match) {
	load := func(offset uint32) {
		c.addExpression(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
	}
	if len(m.SourcePorts) > 0 {
		load(0)
		c.matchPorts(m.SourcePorts, false)
	}
	if len(m.DestinationPorts) > 0 {
		load(2)
		c.matchPorts(m.DestinationPorts, m.NotDestinationPorts)
	}
}

// mark adds a comparison of the mark in register 1.
func (c *conditions) mark(m iptables.Mark, not bool) {
	if m.Mask != ^uint32(0) {
		c.addExpression(masked(m.Mask, 0))
	}
	c.compare(equal(not), host(m.Value))
}

func (c *conditions) connection(m iptables.Match) error {
	var bits uint32
	for _, s := range m.States {
		bit, known := stateBits[s]
		if !known {
			return fmt.Errorf("%q is not a connection tracking state", s)
		}
		bits |= bit
	}
	if bits != 0 {
		c.addExpression(&expr.Ct{Key: expr.CtKeySTATE, Register: 1})
		c.addExpression(masked(bits, 0))
		c.compare(expr.CmpOpNeq, host(0))
	}
	if m.Reply {
		c.addExpression(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1})
		c.compare(expr.CmpOpEq, []byte{directionReply})
	}
	return nil
}

// masked returns the expression that sets register 1 to (register 1 & mask) ^ xor.
func masked(mask, xor uint32) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: host(mask), Xor: host(xor)}
}

func host(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
