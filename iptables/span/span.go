// Package span turns lists of prefixes into spans of addresses and back, which is how the kernel keeps them.
package span

import (
	"net/netip"
	"slices"
)

// Span is the addresses from First to Last, both included and of one family.
type Span struct{ First, Last netip.Addr }

// Of gives the spans that prefixes cover, sorted, none touching another of its family.
func Of(prefixes []netip.Prefix) []Span {
	spans := make([]Span, 0, len(prefixes))
	for _, p := range prefixes {
		spans = append(spans, Span{p.Masked().Addr(), last(p)})
	}
	return Join(spans)
}

// Join sorts spans, and makes one of those that overlap or touch.
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

// Prefixes gives the shortest sorted list of prefixes that covers what a list covers, which may be that list; nil for none.
func Prefixes(list []netip.Prefix) []netip.Prefix {
	if len(list) == 1 && list[0] == list[0].Masked() {
		return list
	}
	var out []netip.Prefix
	for _, s := range Of(list) {
		out = append(out, s.Prefixes()...)
	}
	return out
}

// Prefixes gives the shortest sorted list of prefixes that covers the span.
func (s Span) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for at := s.First; ; {
		p := widest(at, s.Last)
		out = append(out, p)
		if end := last(p); !end.Less(s.Last) {
			return out
		}
		at = last(p).Next()
	}
}

// widest is the widest prefix that begins at an address and does not reach beyond another.
func widest(from, to netip.Addr) netip.Prefix {
	bits := from.BitLen()
	for bits > 0 {
		p := netip.PrefixFrom(from, bits-1)
		if p.Masked().Addr() != from || to.Less(last(p)) {
			break
		}
		bits--
	}
	return netip.PrefixFrom(from, bits)
}

// last is the highest address of a prefix.
func last(p netip.Prefix) netip.Addr {
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
