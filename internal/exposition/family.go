package exposition

import (
	"hash/maphash"
	"strings"
)

// kind is the type of a family.
type kind uint8

const (
	unknown kind = iota // "untyped" in text format
	counter
	gauge
	histogram
	summary
	info
	stateset
	gaugeHistogram

	// created is not a type of a family: it marks names of samples that hold the creation time of the family with the
	// name before _created.
	created
)

var kinds = map[string]kind{
	"counter": counter, "gauge": gauge, "histogram": histogram, "summary": summary, "untyped": unknown, "unknown": unknown,
	"info": info, "stateset": stateset, "gaugehistogram": gaugeHistogram,
}

// parseKind parses the name of a type, case-insensitively.
func parseKind(word []byte) (k kind, ok bool) {
	if k, ok = kinds[string(word)]; !ok {
		k, ok = kinds[strings.ToLower(string(word))]
	}
	return k, ok
}

// textNames and openNames are the names of the types. Types that the text format does not have become the type that
// holds their values.
var (
	textNames = [...]string{"untyped", "counter", "gauge", "histogram", "summary", "gauge", "gauge", "histogram"}
	openNames = [...]string{"unknown", "counter", "gauge", "histogram", "summary", "info", "stateset", "gaugehistogram"}
)

// suffixes are the suffixes of sample names by the family's type. OpenMetrics names counters and infos without their
// suffix; this package uses those names in both formats.
var suffixes = [...][]string{
	unknown: {""}, counter: {"_total", "_created"}, gauge: {""},
	histogram: {"_bucket", "_sum", "_count", "_created"}, summary: {"", "_sum", "_count", "_created"},
	info: {"_info"}, stateset: {""}, gaugeHistogram: {"_bucket", "_gsum", "_gcount"},
}

// family is the metadata of a family before its first sample.
type family struct {
	name       string // in OpenMetrics form
	header     string // as in the source's HELP and TYPE lines
	kind       kind
	typed      bool
	help, unit string
	helped     bool
	cut        int // bytes that are cut from the beginning of the source's names
	// plain: the one sample has the family's name without a suffix, whatever its type. A text-format counter that does
	// not end in _total is plain.
	plain bool
}

// newFamily returns a family with the name and type of a TYPE line.
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

// owns reports whether a sample of that name belongs to the family, and returns the suffix that the sample adds to the
// family's name.
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

// numericLabelKind returns the family's type if its samples have a label whose value must be a number (le, quantile).
func (f *family) numericLabelKind() kind {
	if f.plain {
		return unknown
	}
	return f.kind
}

// typeLine returns the family's name and type in HELP and TYPE lines of a format.
func (f *family) typeLine(out Format) (name, word string) {
	switch {
	case out == OpenMetrics && f.plain:
		// A counter must end in _total in OpenMetrics, and its samples must keep their names.
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

// visitNames calls visit with the suffix of each name that the family occupies in a format, until visit returns false.
// No other family may have one of these names.
func (f *family) visitNames(out Format, visit func(suffix string) bool) bool {
	if out == OpenMetrics || (f.kind != counter && f.kind != info) || f.plain {
		if !visit("") {
			return false
		}
	}
	if f.plain {
		return true
	}
	for _, s := range suffixes[f.kind] {
		if s == "" || s == "_created" { // claimed by their first sample: in text format they are often separate families
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

// claim records the owner of a name.
type claim struct {
	source uint16
	kind   kind
	plain  bool
}

// names stores the hashes of the used names, with about 10 bytes for each.
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

// maxKept is the number of names up to which a table is reused for the next exposition.
const maxKept = 10_000

func (n *names) forget() {
	if n.taken == nil || len(n.taken) > maxKept {
		n.taken = make(map[uint64]claim, 256)
	}
	clear(n.taken)
}

func (n *names) hash(name, suffix string) uint64 {
	n.buf = append(append(n.buf[:0], name...), suffix...)
	return maphash.Bytes(n.seed, n.buf)
}

// claim reserves all names of a family, or none if one of them belongs to another family.
func (n *names) claim(f *family, out Format, source uint16) bool {
	free := f.visitNames(out, func(suffix string) bool {
		_, taken := n.taken[n.hash(f.name, suffix)]
		return !taken
	})
	if free {
		f.visitNames(out, func(suffix string) bool {
			n.taken[n.hash(f.name, suffix)] = claim{source, f.kind, f.plain}
			return true
		})
	}
	return free
}

// claimCreated reserves the name of a family's creation time samples, unless another family has the name.
func (n *names) claimCreated(family string) bool {
	h := n.hash(family, "_created")
	if c, taken := n.taken[h]; taken {
		return c.kind == created
	}
	n.taken[h] = claim{kind: created}
	return true
}

// owner returns the claim on the name in the family's HELP and TYPE lines.
func (n *names) owner(f *family, out Format) (claim, bool) {
	name, _ := f.typeLine(out)
	c, ok := n.taken[n.hash(name, "")]
	return c, ok
}
