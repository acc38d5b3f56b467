package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/iprange"
)

// compare decodes an expression that compares the value in the register.
func (d *decoder) compare(e kernelExpr) error {
	if d.verdict.Action != "" {
		return fmt.Errorf("the rule has a condition after the action %s", d.verdict.Action)
	}
	values, not, err := d.values(e)
	if err != nil {
		return err
	}
	switch from := d.register.(type) {
	case *expr.Meta:
		return d.onMeta(from.Key, values, not)
	case *expr.Payload:
		return d.onPayload(from, values, not)
	case *expr.Ct:
		return d.onConnection(from.Key, values, not)
	}
	return errWords
}

// values returns the values with which the expression compares the register. not reports whether the comparison is
// negated.
func (d *decoder) values(e kernelExpr) (values []interval, not bool, err error) {
	switch e.name {
	case "cmp":
		x := &expr.Cmp{}
		if !e.decodeAs(e.name, x) || (x.Op != expr.CmpOpEq && x.Op != expr.CmpOpNeq) || len(x.Data) == 0 {
			return nil, false, errWords
		}
		return []interval{{x.Data, x.Data}}, x.Op == expr.CmpOpNeq, nil
	case "range":
		x := &expr.Range{}
		if !e.decodeAs(e.name, x) || (x.Op != expr.CmpOpEq && x.Op != expr.CmpOpNeq) || len(x.FromData) == 0 || len(x.FromData) != len(x.ToData) {
			return nil, false, errWords
		}
		return []interval{{x.FromData, x.ToData}}, x.Op == expr.CmpOpNeq, nil
	}
	x := &expr.Lookup{}
	if !e.decodeAs(e.name, x) || x.IsDestRegSet {
		return nil, false, errWords
	}
	set, known := d.sets[x.SetName]
	if !known {
		return nil, false, fmt.Errorf("the set %s, which the rule refers to, does not exist", x.SetName)
	}
	values, err = set.intervals()
	return values, x.Invert, err
}

// intervals returns the elements of a set as intervals. The kernel lists elements unsorted. The end element of an
// interval is the first value after the interval.
func (s kernelSet) intervals() ([]interval, error) {
	const known = unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT | unix.NFT_SET_INTERVAL
	if s.flags&^known != 0 || len(s.elements) == 0 {
		return nil, errWords
	}
	sorted := slices.SortedStableFunc(slices.Values(s.elements), func(a, b kernelElement) int { return bytes.Compare(a.value, b.value) })
	var out []interval
	open := false
	for _, e := range sorted {
		switch {
		case len(e.value) == 0:
			return nil, errWords
		case s.flags&unix.NFT_SET_INTERVAL == 0:
			out = append(out, interval{e.value, e.value})
		case e.end && open:
			out[len(out)-1].last, open = predecessor(e.value), false
		case !e.end:
			out, open = append(out, interval{e.value, bytes.Repeat([]byte{0xff}, len(e.value))}), true
		} // ignore an end without a start, because some kernels add one with value zero
	}
	return out, nil
}

// singleValue returns the value if the list contains exactly one. Otherwise it returns false.
func singleValue(values []interval) ([]byte, bool) {
	if len(values) != 1 || !values[0].isSingle() {
		return nil, false
	}
	return values[0].first, true
}

func (d *decoder) onMeta(key expr.MetaKey, values []interval, not bool) error {
	switch key {
	case expr.MetaKeySKUID:
		return d.ids(&d.match.UIDs, &d.match.NotUIDs, values, not)
	case expr.MetaKeySKGID:
		return d.ids(&d.match.GIDs, &d.match.NotGIDs, values, not)
	}
	v, ok := singleValue(values)
	if !ok {
		return errWords
	}
	switch {
	case key == expr.MetaKeyMARK && d.match.Mark == nil:
		d.match.NotMark = not
		return d.onMark(&d.match.Mark, v)
	case key == expr.MetaKeyOIFNAME && d.match.OutInterface == "":
		d.match.OutInterface, d.match.NotOut = trimmed(v), not
	case not:
		return errWords
	case key == expr.MetaKeyIIFNAME && d.match.InInterface == "":
		d.match.InInterface = trimmed(v)
	case key == expr.MetaKeyNFPROTO:
		d.match.Families = familyOfNumber(v[0])
	case key == expr.MetaKeyL4PROTO:
		return d.onProtocol(v[0])
	default:
		return errWords
	}
	return nil
}

func (d *decoder) onProtocol(n byte) error {
	for p, number := range protocolNumbers {
		if number == n && d.match.Protocol == iptables.AnyProtocol {
			d.match.Protocol = p
			return nil
		}
	}
	return errWords
}

func (d *decoder) onMark(to **iptables.Mark, v []byte) error {
	mask := ^uint32(0)
	if d.mask != nil {
		if len(d.mask) != 4 || len(v) != 4 || binary.NativeEndian.Uint32(d.xor) != 0 {
			return errWords
		}
		mask = binary.NativeEndian.Uint32(d.mask)
	}
	if len(v) != 4 {
		return errWords
	}
	*to = &iptables.Mark{Value: binary.NativeEndian.Uint32(v), Mask: mask}
	return nil
}

func (d *decoder) ids(to *[]uint32, negated *bool, values []interval, not bool) error {
	if len(*to) > 0 || d.mask != nil {
		return errWords
	}
	for _, v := range values {
		if !v.isSingle() || len(v.first) != 4 {
			return errWords
		}
		*to = append(*to, binary.NativeEndian.Uint32(v.first))
	}
	*negated = not
	return nil
}

func (d *decoder) onPayload(from *expr.Payload, values []interval, not bool) error {
	type place struct {
		base        expr.PayloadBase
		offset, len uint32
	}
	m := &d.match
	if d.mask != nil { // nft encodes a prefix as a mask and a comparison
		var ok bool
		if values, ok = maskedPrefix(d.mask, d.xor, values); !ok {
			return errWords
		}
	}
	switch (place{from.Base, from.Offset, from.Len}) {
	case place{expr.PayloadBaseNetworkHeader, 12, 4}, place{expr.PayloadBaseNetworkHeader, 8, 16}:
		return onAddresses(&m.Source, &m.NotSource, values, not)
	case place{expr.PayloadBaseNetworkHeader, 16, 4}, place{expr.PayloadBaseNetworkHeader, 24, 16}:
		return onAddresses(&m.Destination, &m.NotDestination, values, not)
	case place{expr.PayloadBaseTransportHeader, 0, 2}:
		if not {
			return errWords
		}
		return onPorts(&m.SourcePorts, values)
	case place{expr.PayloadBaseTransportHeader, 2, 2}:
		m.NotDestinationPorts = not
		return onPorts(&m.DestinationPorts, values)
	}
	return errWords
}

// maskedPrefix returns the address interval of a prefix, which is encoded as a mask of leading bits and a value. It returns
// false for other masks.
func maskedPrefix(mask, xor []byte, values []interval) ([]interval, bool) {
	v, ok := singleValue(values)
	if !ok || len(v) != len(mask) || len(bytes.Trim(xor, "\x00")) > 0 {
		return nil, false
	}
	last := slices.Clone(v)
	for i := range last {
		last[i] |= ^mask[i]
	}
	return []interval{{v, last}}, true
}

func onAddresses(to *[]netip.Prefix, negated *bool, values []interval, not bool) error {
	if len(*to) > 0 {
		return errWords
	}
	for _, v := range values {
		first, ok := netip.AddrFromSlice(v.first)
		last, okLast := netip.AddrFromSlice(v.last)
		if !ok || !okLast || last.Less(first) {
			return errWords
		}
		*to = append(*to, iprange.Span{First: first, Last: last}.Prefixes()...)
	}
	*negated = not
	return nil
}

func onPorts(to *[]iptables.PortRange, values []interval) error {
	if len(*to) > 0 {
		return errWords
	}
	for _, v := range values {
		if len(v.first) != 2 || len(v.last) != 2 {
			return errWords
		}
		*to = append(*to, iptables.PortRange{First: binary.BigEndian.Uint16(v.first), Last: binary.BigEndian.Uint16(v.last)})
	}
	return nil
}

// directionReply is IP_CT_DIR_REPLY of linux/netfilter/nf_conntrack_tuple_common.h.
const directionReply = 1

func (d *decoder) onConnection(key expr.CtKey, values []interval, not bool) error {
	v, ok := singleValue(values)
	if ok && key == expr.CtKeyDIRECTION && !not && len(v) == 1 && v[0] == directionReply {
		d.match.Reply = true
		return nil
	}
	if !ok || len(v) != 4 {
		return errWords
	}
	switch {
	case key == expr.CtKeyMARK && !not && d.match.ConnMark == nil:
		return d.onMark(&d.match.ConnMark, v)
	case key == expr.CtKeySTATE && not && binary.NativeEndian.Uint32(v) == 0 && len(d.mask) == 4 && len(d.match.States) == 0:
		bits := binary.NativeEndian.Uint32(d.mask)
		for s, bit := range stateBits {
			if bits&bit != 0 {
				d.match.States, bits = append(d.match.States, s), bits&^bit
			}
		}
		if bits == 0 {
			return nil
		}
	}
	return errWords
}
