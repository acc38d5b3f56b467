// Package iprange converts between IP prefixes and the address ranges that nftables uses.
package iprange

import (
	"net/netip"
	"slices"
)

// Span is the range of addresses from First to Last, inclusive. Both have the same family.
type Span struct{ First, Last netip.Addr }

// Spans returns the address ranges that the prefixes cover. They are sorted, disjoint and not adjacent.
func Spans(prefixes []netip.Prefix) []Span {
	spans := make([]Span, 0, len(prefixes))
	for _, p := range prefixes {
		spans = append(spans, Span{p.Masked().Addr(), lastAddress(p)})
	}
	return Join(spans)
}

// Join sorts the ranges, and merges those that overlap or are adjacent.
func Join(spans []Span) []Span {
	if len(spans) == 0 {
		return nil
	}
	spans = slices.SortedFunc(slices.Values(spans), func(a, b Span) int { return a.First.Compare(b.First) })
	out := spans[:1]
	for _, s := range spans[1:] {
		prev := &out[len(out)-1]
		if next := prev.Last.Next(); s.First.BitLen() != prev.Last.BitLen() || (next.IsValid() && next.Less(s.First)) {
			out = append(out, s)
			continue
		}
		if prev.Last.Less(s.Last) {
			prev.Last = s.Last
		}
	}
	return out
}

// Prefixes returns the shortest sorted list of prefixes that covers the same addresses as list. The result may be list
// itself. For an empty list it is nil.
func Prefixes(list []netip.Prefix) []netip.Prefix {
	if len(list) == 1 && list[0] == list[0].Masked() {
		return list
	}
	var out []netip.Prefix
	for _, s := range Spans(list) {
		out = append(out, s.Prefixes()...)
	}
	return out
}

// Prefixes returns the shortest sorted list of prefixes that covers the range.
func (s Span) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for at := s.First; ; {
		p := maxPrefix(at, s.Last)
		out = append(out, p)
		if end := lastAddress(p); !end.Less(s.Last) {
			return out
		}
		at = lastAddress(p).Next()
	}
}

// maxPrefix returns the largest prefix that begins at first and does not exceed last.
func maxPrefix(first, last netip.Addr) netip.Prefix {
	bits := first.BitLen()
	for bits > 0 {
		p := netip.PrefixFrom(first, bits-1)
		if p.Masked().Addr() != first || last.Less(lastAddress(p)) {
			break
		}
		bits--
	}
	return netip.PrefixFrom(first, bits)
}

// lastAddress returns the last address of a prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	at := p.Bits() / 8
	if at < len(b) {
		b[at] |= 0xff >> (p.Bits() % 8)
	}
	for i := at + 1; i < len(b); i++ {
		b[i] = 0xff
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
