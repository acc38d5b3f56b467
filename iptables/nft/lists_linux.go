package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/span"
)

// key is a kind of value that rules compare, as nft names it in sets, by number.
type key struct {
	nft  uint32 // include/datatype.h of nft
	size uint32
	host bool // in the machine's order of bytes
}

var (
	keyIPv4 = key{7, 4, false}
	keyIPv6 = key{8, 16, false}
	keyPort = key{13, 2, false}
	keyUID  = key{24, 4, true}
	keyGID  = key{25, 4, true}
)

// interval is values from first to last.
type interval struct{ first, last []byte }

// list is what a packet's value, in register 1, has to be one of, or none of.
type list struct {
	key    key
	values []interval // sorted, and none touching another
	not    bool
}

func addressList(prefixes []netip.Prefix, not bool) list {
	l := list{key: keyIPv4, not: not}
	if prefixes[0].Addr().Is6() {
		l.key = keyIPv6
	}
	for _, s := range span.Of(prefixes) {
		l.values = append(l.values, interval{s.First.AsSlice(), s.Last.AsSlice()})
	}
	return l
}

func portList(ranges []iptables.PortRange, not bool) list {
	l := list{key: keyPort, not: not}
	for _, r := range ranges {
		l.values = append(l.values, interval{binary.BigEndian.AppendUint16(nil, r.First), binary.BigEndian.AppendUint16(nil, r.Last)})
	}
	return l
}

func idList(k key, ids []uint32, not bool) list {
	l := list{key: k, not: not}
	for _, id := range ids {
		b := binary.NativeEndian.AppendUint32(nil, id)
		l.values = append(l.values, interval{b, b})
	}
	return l
}

// single says whether an interval is one value.
func (i interval) single() bool { return string(i.first) == string(i.last) }

// expression compares register 1 with the list, for which it may add a set to the batch.
func (l list) expression(b *batch) expr.Any {
	op, in := expr.CmpOpEq, expr.CmpOpEq
	if l.not {
		op, in = expr.CmpOpNeq, expr.CmpOpNeq
	}
	switch {
	case len(l.values) > 1:
		id := b.set(l)
		return &expr.Lookup{SourceRegister: 1, SetName: setName, SetID: id, Invert: l.not}
	case l.values[0].single():
		return &expr.Cmp{Op: op, Register: 1, Data: l.values[0].first}
	default:
		return &expr.Range{Op: in, Register: 1, FromData: l.values[0].first, ToData: l.values[0].last}
	}
}

// setName has the kernel number anonymous sets.
const setName = "__set%d"

// set adds an anonymous set to the batch, and gives its number there.
func (b *batch) set(l list) uint32 {
	b.sets++
	flags := uint32(unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT)
	var elements [][]byte
	for _, v := range l.values {
		if !v.single() {
			flags |= unix.NFT_SET_INTERVAL
		}
	}
	for _, v := range l.values {
		elements = append(elements, element(v.first, false))
		if flags&unix.NFT_SET_INTERVAL == 0 {
			continue
		}
		if end, more := after(v.last); more {
			elements = append(elements, element(end, true))
		}
	}
	order := uint32(2) // nft's name for big-endian; it shows numbers wrongly without
	if l.key.host {
		order = 1
	}
	b.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, "a set of "+b.rule, concat(
		text(unix.NFTA_SET_TABLE, Table), text(unix.NFTA_SET_NAME, setName), number(unix.NFTA_SET_ID, b.sets),
		number(unix.NFTA_SET_FLAGS, flags), number(unix.NFTA_SET_KEY_TYPE, l.key.nft), number(unix.NFTA_SET_KEY_LEN, l.key.size),
		nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, uint32(len(elements)))),
		// Nothing but this old tag: programs of one version of nft have crashed on what those of another put here.
		attribute(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)),
	))
	b.elements(l.key, elements)
	return b.sets
}

// elementsAtOnce keeps the attribute that holds them below 64 KiB, where attributes end.
const elementsAtOnce = 1000

func (b *batch) elements(k key, elements [][]byte) {
	for len(elements) > 0 {
		n := min(elementsAtOnce, len(elements))
		b.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, "a set of "+b.rule, concat(
			text(unix.NFTA_SET_ELEM_LIST_TABLE, Table), text(unix.NFTA_SET_ELEM_LIST_SET, setName),
			number(unix.NFTA_SET_ELEM_LIST_SET_ID, b.sets),
			nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, elements[:n]...)))
		elements = elements[n:]
	}
}

// element is a value, or the first that is beyond an interval.
func element(value []byte, end bool) []byte {
	parts := [][]byte{nested(unix.NFTA_SET_ELEM_KEY, attribute(unix.NFTA_DATA_VALUE, value))}
	if end {
		parts = append(parts, number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
	}
	return nested(unix.NFTA_LIST_ELEM, parts...)
}

// after is the next value of a big-endian number; there is none after the highest.
func after(value []byte) (next []byte, more bool) {
	next = append(next, value...)
	for i := len(next) - 1; i >= 0; i-- {
		next[i]++
		if next[i] != 0 {
			return next, true
		}
	}
	return nil, false
}

// before is the value before one that is not zero.
func before(value []byte) []byte {
	prev := append([]byte(nil), value...)
	for i := len(prev) - 1; i >= 0; i-- {
		prev[i]--
		if prev[i] != 0xff {
			break
		}
	}
	return prev
}
