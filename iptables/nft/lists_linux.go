package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"

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

// among compares register 1 with the list, for which it may add a set to the batch.
func (c *conditions) among(l list) {
	op := equal(l.not)
	switch {
	case len(l.values) > 1:
		id := c.batch.set(l)
		c.other(&expr.Lookup{SourceRegister: 1, SetName: setName, SetID: id, Invert: l.not})
	case l.values[0].single():
		c.compare(op, l.values[0].first)
	default:
		c.between(expr.Range{Op: op, Register: 1, FromData: l.values[0].first, ToData: l.values[0].last})
	}
}

// amongIDs is among of ids, amongPorts of ports, amongAddresses of addresses: with those that are one value, as most are,
// compared without a list.
func (c *conditions) amongIDs(k key, ids []uint32, not bool) {
	if len(ids) > 1 {
		c.among(idList(k, ids, not))
		return
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], ids[0])
	c.compare(equal(not), b[:])
}

func (c *conditions) amongPorts(ranges []iptables.PortRange, not bool) {
	if len(ranges) > 1 || ranges[0].First != ranges[0].Last {
		c.among(portList(ranges, not))
		return
	}
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], ranges[0].First)
	c.compare(equal(not), b[:])
}

func (c *conditions) amongAddresses(prefixes []netip.Prefix, not bool) {
	switch p := prefixes[0]; {
	case len(prefixes) > 1 || !p.IsSingleIP():
		c.among(addressList(prefixes, not))
	case p.Addr().Is4():
		b := p.Addr().As4()
		c.compare(equal(not), b[:])
	default:
		b := p.Addr().As16()
		c.compare(equal(not), b[:])
	}
}

// setName has the kernel number anonymous sets.
const setName = "__set%d"

// set adds an anonymous set to the batch, and gives its number there.
func (b *batch) set(l list) uint32 {
	b.sets++
	flags := uint32(unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT)
	for _, v := range l.values {
		if !v.single() {
			flags |= unix.NFT_SET_INTERVAL
		}
	}
	var elements []kernelElement
	for _, v := range l.values {
		elements = append(elements, kernelElement{value: v.first})
		if flags&unix.NFT_SET_INTERVAL == 0 {
			continue
		}
		if end, more := after(v.last); more {
			elements = append(elements, kernelElement{value: end, end: true})
		}
	}
	order := uint32(2) // nft's name for big-endian; it shows numbers wrongly without
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
	// Nothing but this old tag: programs of one version of nft have crashed on what those of another put here.
	b.bytes(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order))
	b.end(at)
	b.elements(elements)
	return b.sets
}

// elementsAtOnce keeps the attribute that holds them below 64 KiB, where attributes end.
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

// element writes a value, or the first that is beyond an interval.
func (b *batch) element(e kernelElement) {
	at := b.nest(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, e.value)
	if e.end {
		b.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	b.close(at)
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
