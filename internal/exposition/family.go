package exposition

import (
	"hash/maphash"
	"strings"
)

// kind is the type of a metric family.
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

	// created is not the type of a family. In a claim, it marks a name with the suffix _created, which samples with a
	// family's creation time have.
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

// textNames and openNames are the names of the types in text format and in OpenMetrics. For a type that does not exist
// in text format, textNames contains a type that can represent its values.
var (
	textNames = [...]string{"untyped", "counter", "gauge", "histogram", "summary", "gauge", "gauge", "histogram"}
	openNames = [...]string{"unknown", "counter", "gauge", "histogram", "summary", "info", "stateset", "gaugehistogram"}
)

// suffixes contains, for each type, the suffixes that the names of samples add to the family's name. In OpenMetrics,
// the family names of counters and infos do not include the suffix. This package uses these family names for both
// formats.
var suffixes = [...][]string{
	unknown: {""}, counter: {"_total", "_created"}, gauge: {""},
	histogram: {"_bucket", "_sum", "_count", "_created"}, summary: {"", "_sum", "_count", "_created"},
	info: {"_info"}, stateset: {""}, gaugeHistogram: {"_bucket", "_gsum", "_gcount"},
}

// family is the metadata of a metric family. It is known before the family's first sample.
type family struct {
	name       string // name in OpenMetrics
	header     string // the name in the source's HELP and TYPE lines, without the prefix that Cut removes
	kind       kind
	typed      bool
	help, unit string
	helped     bool
	cut        int // number of bytes that Cut removes from the beginning of the source's names
	// plain: the samples have exactly the family's name, whatever the type is. A text-format counter is plain if its
	// name does not end in _total.
	plain bool
}

// newFamily returns the family that a TYPE line with the name header and the type k describes. f is the source's
// format.
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

// owns reports whether a sample with this name belongs to the family. It returns the suffix that the sample's name adds
// to the family's.
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

// numericLabelKind returns the kind that determines which label (le, quantile) must have a numeric value. It returns
// unknown for a plain family, whose labels may have any value.
func (f *family) numericLabelKind() kind {
	if f.plain {
		return unknown
	}
	return f.kind
}

// typeLine returns the family's name and type (word) for HELP and TYPE lines in the format out.
func (f *family) typeLine(out Format) (name, word string) {
	switch {
	case out == OpenMetrics && f.plain:
		// In OpenMetrics the names of counters must end in _total, but the samples must not be renamed.
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

// visitNames calls visit with the suffix of each name that the family reserves in the format out. No other family may
// use these names. It stops and returns false when visit returns false.
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
		// The name without a suffix is handled above. claimCreated reserves the name with _created when such a sample
		// occurs, because in text format this name often belongs to a separate family.
		if s == "" || s == "_created" {
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

// claim describes the family that reserved a name.
type claim struct {
	source uint16
	kind   kind
	plain  bool
}

// names stores the hash of each reserved name and the family that reserved it.
type names struct {
	seed  maphash.Seed
	taken map[uint64]claim
	buf   []byte
}

func newNames() *names {
	n := &names{seed: maphash.MakeSeed()}
	n.reset()
	return n
}

// maxKept is the maximum number of names in a table that the next exposition uses again. A larger table is replaced.
const maxKept = 10_000

func (n *names) reset() {
	if n.taken == nil || len(n.taken) > maxKept {
		n.taken = make(map[uint64]claim, 256)
	}
	clear(n.taken)
}

func (n *names) hash(name, suffix string) uint64 {
	n.buf = append(append(n.buf[:0], name...), suffix...)
	return maphash.Bytes(n.seed, n.buf)
}

// claim reserves all names of f in the format out. If one of them is already reserved, it reserves none and returns
// false.
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

// claimCreated reserves the name of the samples with the creation time of family. It returns false if another family
// has this name.
func (n *names) claimCreated(family string) bool {
	h := n.hash(family, "_created")
	if c, taken := n.taken[h]; taken {
		return c.kind == created
	}
	n.taken[h] = claim{kind: created}
	return true
}

// owner returns the claim of the family that reserved the name in f's HELP and TYPE lines, or false if there is none.
func (n *names) owner(f *family, out Format) (claim, bool) {
	name, _ := f.typeLine(out)
	c, ok := n.taken[n.hash(name, "")]
	return c, ok
}
