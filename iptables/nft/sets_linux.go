package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/iprange"
)

// key is the type of the values of a set.
type key struct {
	nft  uint32 // number of the type in include/datatype.h of nft
	size uint32
	host bool // values are in the machine's byte order
}

var (
	keyIPv4 = key{7, 4, false}
	keyIPv6 = key{8, 16, false}
	keyPort = key{13, 2, false}
	keyUID  = key{24, 4, true}
	keyGID  = key{25, 4, true}
)

// interval is a range of values, inclusive.
type interval struct{ first, last []byte }

// list is a condition on the value in register 1: it must be one of the values or, if the list is negated, none of
// them.
type list struct {
	key    key
	values []interval // sorted and not adjacent
	not    bool
}

func addressList(prefixes []netip.Prefix, not bool) list {
	l := list{key: keyIPv4, not: not}
	if prefixes[0].Addr().Is6() {
		l.key = keyIPv6
	}
	for _, s := range iprange.Spans(prefixes) {
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

// isSingle reports whether the interval is one value.
func (i interval) isSingle() bool { return string(i.first) == string(i.last) }

// matchList adds a comparison of register 1 with the list. For several values, it adds a set to the batch.
func (c *conditions) matchList(l list) {
	op := equal(l.not)
	switch {
	case len(l.values) > 1:
		id := c.batch.set(l)
		c.addExpression(&expr.Lookup{SourceRegister: 1, SetName: setName, SetID: id, Invert: l.not})
	case l.values[0].isSingle():
		c.compare(op, l.values[0].first)
	default:
		c.addExpression(&expr.Range{Op: op, Register: 1, FromData: l.values[0].first, ToData: l.values[0].last})
	}
}

// matchIDs adds a comparison of register 1 with IDs, matchPorts with ports, and matchAddresses with addresses. If there
// is a single value, they add a direct comparison without a list. This is the most common case.
func (c *conditions) matchIDs(k key, ids []uint32, not bool) {
	if len(ids) > 1 {
		c.matchList(idList(k, ids, not))
		return
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], ids[0])
	c.compare(equal(not), b[:])
}

func (c *conditions) matchPorts(ranges []iptables.PortRange, not bool) {
	if len(ranges) > 1 || ranges[0].First != ranges[0].Last {
		c.matchList(portList(ranges, not))
		return
	}
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], ranges[0].First)
	c.compare(equal(not), b[:])
}

func (c *conditions) matchAddresses(prefixes []netip.Prefix, not bool) {
	switch p := prefixes[0]; {
	case len(prefixes) > 1 || !p.IsSingleIP():
		c.matchList(addressList(prefixes, not))
	case p.Addr().Is4():
		b := p.Addr().As4()
		c.compare(equal(not), b[:])
	default:
		b := p.Addr().As16()
		c.compare(equal(not), b[:])
	}
}

// setName is a name template for anonymous sets. The kernel replaces %d by a number.
const setName = "__set%d"

// set adds an anonymous set to the batch and returns its ID in the batch.
func (b *batch) set(l list) uint32 {
	b.sets++
	flags := uint32(unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT)
	for _, v := range l.values {
		if !v.isSingle() {
			flags |= unix.NFT_SET_INTERVAL
		}
	}
	var elements []kernelElement
	for _, v := range l.values {
		elements = append(elements, kernelElement{value: v.first})
		if flags&unix.NFT_SET_INTERVAL == 0 {
			continue
		}
		if end, more := successor(v.last); more {
			elements = append(elements, kernelElement{value: end, end: true})
		}
	}
	order := uint32(2) // nft's number for big-endian; nft needs it to print the elements correctly
	if l.key.host {
		order = 1
	}
	at := b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, part{"a set of rule", b.rule})
	b.text(unix.NFTA_SET_TABLE, Table)
	b.text(unix.NFTA_SET_NAME, setName)
	b.number(unix.NFTA_SET_ID, b.sets)
	b.number(unix.NFTA_SET_FLAGS, flags)
	b.number(unix.NFTA_SET_KEY_TYPE, l.key.nft)
	b.number(unix.NFTA_SET_KEY_LEN, l.key.size)
	description := b.nest(unix.NFTA_SET_DESC)
	b.number(unix.NFTA_SET_DESC_SIZE, uint32(len(elements)))
	b.close(description)
	// Write only this old attribute: some versions of nft crash on newer ones.
	b.bytes(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order))
	b.end(at)
	b.elements(elements)
	return b.sets
}

// elementsAtOnce is the maximum number of elements in one attribute, whose maximum size is 64 KiB.
const elementsAtOnce = 1000

func (b *batch) elements(all []kernelElement) {
	for some := range slices.Chunk(all, elementsAtOnce) {
		at := b.message(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, part{"a set of rule", b.rule})
		b.text(unix.NFTA_SET_ELEM_LIST_TABLE, Table)
		b.text(unix.NFTA_SET_ELEM_LIST_SET, setName)
		b.number(unix.NFTA_SET_ELEM_LIST_SET_ID, b.sets)
		list := b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, e := range some {
			b.element(e)
		}
		b.close(list)
		b.end(at)
	}
}

// element adds a set element: the first value of an interval, or its end, which is the first value after the interval.
func (b *batch) element(e kernelElement) {
	at := b.nest(unix.NFTA_LIST_ELEM)
	key := b.nest(unix.NFTA_SET_ELEM_KEY)
	b.bytes(unix.NFTA_DATA_VALUE, e.value)
	b.close(key)
	if e.end {
		b.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	b.close(at)
}

// successor returns the big-endian number value + 1. It returns false if value is the maximum.
func successor(value []byte) (next []byte, more bool) {
	next = append(next, value...)
	for i := len(next) - 1; i >= 0; i-- {
		next[i]++
		if next[i] != 0 {
			return next, true
		}
	}
	return nil, false
}

// predecessor returns the big-endian number value - 1. value must not be zero.
func predecessor(value []byte) []byte {
	prev := append([]byte(nil), value...)
	for i := len(prev) - 1; i >= 0; i-- {
		prev[i]--
		if prev[i] != 0xff {
			break
		}
	}
	return prev
}
