package exposition

import (
	"hash/maphash"
	"strings"
)

// kind is what a family is.
type kind uint8

const (
	unknown kind = iota // untyped, in text
	counter
	gauge
	histogram
	summary
	info
	stateset
	gaugeHistogram

	// created is no kind of a family: it marks the name of samples that say when a family of that name's beginning began.
	created
)

var kinds = map[string]kind{
	"counter": counter, "gauge": gauge, "histogram": histogram, "summary": summary, "untyped": unknown, "unknown": unknown,
	"info": info, "stateset": stateset, "gaugehistogram": gaugeHistogram,
}

// kindOf reads a kind's word, in whatever case.
func kindOf(word []byte) (k kind, ok bool) {
	if k, ok = kinds[string(word)]; !ok {
		k, ok = kinds[strings.ToLower(string(word))]
	}
	return k, ok
}

// textNames and openNames are the words for a kind. Text has no word for some: they become what holds their values.
var (
	textNames = [...]string{"untyped", "counter", "gauge", "histogram", "summary", "gauge", "gauge", "histogram"}
	openNames = [...]string{"unknown", "counter", "gauge", "histogram", "summary", "info", "stateset", "gaugehistogram"}
)

// suffixes are what samples of a kind add to the family's name. OpenMetrics names counters and infos without their suffix;
// here, they are named so in both formats.
var suffixes = [...][]string{
	unknown: {""}, counter: {"_total", "_created"}, gauge: {""},
	histogram: {"_bucket", "_sum", "_count", "_created"}, summary: {"", "_sum", "_count", "_created"},
	info: {"_info"}, stateset: {""}, gaugeHistogram: {"_bucket", "_gsum", "_gcount"},
}

// family is what is known of a family before its first sample.
type family struct {
	name       string // as in OpenMetrics
	header     string // as the source describes it
	kind       kind
	typed      bool
	help, unit string
	helped     bool
	cut        int // bytes that the source has before its names
	// plain says that the one sample's name is the family's own whatever its kind: a counter of the text format that does
	// not end in _total.
	plain bool
}

// newFamily makes a family from the name and type of a header.
func newFamily(header string, k kind, f Format) family {
	fam := family{name: header, header: header, kind: k, typed: true}
	if k == counter {
		base, ok := strings.CutSuffix(header, "_total")
		switch {
		case ok && base != "":
			fam.name = base
		case f == Text:
			fam.plain = true
		}
	}
	return fam
}

// owns says whether a sample of that name belongs to the family, and gives what it adds to the family's name.
func (f *family) owns(name []byte) (suffix string, ok bool) {
	if len(name) < len(f.name) || string(name[:len(f.name)]) != f.name {
		return "", false
	}
	rest := name[len(f.name):]
	if f.plain {
		return "", len(rest) == 0
	}
	for _, s := range suffixes[f.kind] {
		if string(rest) == s {
			return s, true
		}
	}
	return "", false
}

// numbered is the kind of the family as far as its samples have a label that has to be a number.
func (f *family) numbered() kind {
	if f.plain {
		return unknown
	}
	return f.kind
}

// described is the family's name in the lines that describe it, and its kind, in a format.
func (f *family) described(out Format) (name, word string) {
	switch {
	case out == OpenMetrics && f.plain:
		// A counter has to end in _total there, and its samples may not be renamed.
		return f.name, openNames[unknown]
	case out == OpenMetrics:
		return f.name, openNames[f.kind]
	case f.kind == counter && !f.plain:
		return f.name + "_total", textNames[counter]
	case f.kind == info:
		return f.name + "_info", textNames[info]
	}
	return f.name, textNames[f.kind]
}

// claims are all names that the family takes for itself in a format: no other may have one of them.
func (f *family) claims(out Format, visit func(suffix string) bool) bool {
	if out == OpenMetrics || (f.kind != counter && f.kind != info) || f.plain {
		if !visit("") {
			return false
		}
	}
	if f.plain {
		return true
	}
	for _, s := range suffixes[f.kind] {
		if s == "" || s == "_created" { // which are claimed when they come: in text, they are often families of their own
			continue
		}
		if out == Text && (s == "_gsum" || s == "_gcount") {
			s = "_" + s[2:]
		}
		if !visit(s) {
			return false
		}
	}
	return true
}

// claim says who has a name.
type claim struct {
	source uint16
	kind   kind
	plain  bool
}

// names remembers which names are taken, by their hashes: 10 bytes or so for each.
type names struct {
	seed  maphash.Seed
	taken map[uint64]claim
	buf   []byte
}

func newNames() *names {
	n := &names{seed: maphash.MakeSeed()}
	n.forget()
	return n
}

// mostKept names are what a table may have had that is used again.
const mostKept = 10_000

func (n *names) forget() {
	if n.taken == nil || len(n.taken) > mostKept {
		n.taken = make(map[uint64]claim, 256)
	}
	clear(n.taken)
}

func (n *names) hash(name, suffix string) uint64 {
	n.buf = append(append(n.buf[:0], name...), suffix...)
	return maphash.Bytes(n.seed, n.buf)
}

// claim takes the family's names, all or none.
func (n *names) claim(f *family, out Format, source uint16) bool {
	free := f.claims(out, func(suffix string) bool {
		_, taken := n.taken[n.hash(f.name, suffix)]
		return !taken
	})
	if free {
		f.claims(out, func(suffix string) bool {
			n.taken[n.hash(f.name, suffix)] = claim{source, f.kind, f.plain}
			return true
		})
	}
	return free
}

// claimCreated takes the name of a family's samples that say when it began, unless another family has it.
func (n *names) claimCreated(family string) bool {
	h := n.hash(family, "_created")
	if c, taken := n.taken[h]; taken {
		return c.kind == created
	}
	n.taken[h] = claim{kind: created}
	return true
}

// owner says whose the name is under which the family is described.
func (n *names) owner(f *family, out Format) (claim, bool) {
	name, _ := f.described(out)
	c, ok := n.taken[n.hash(name, "")]
	return c, ok
}
