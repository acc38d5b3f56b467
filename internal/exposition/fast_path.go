package exposition

import (
	"bytes"
	"hash/maphash"
)

// Fast path: most lines are written unchanged, and most label sets repeat, because Envoy has hundreds of families with
// the same clusters. A line of the current family is not parsed if its label set occurred before, in a line that was
// parsed and written unchanged. Its labels are then valid, and isKnown checks only its name and value. Adjacent lines
// of this kind are copied together.

// seenSize is the number of label sets that are stored, a power of two. An Envoy with 200 clusters has about 4000 label
// sets, most of them of histogram buckets.
const seenSize = 1 << 14

// seen stores hashes of label sets. Each hash has four possible slots. If all are in use, a new hash replaces the
// oldest one, and lines with the replaced label set are parsed again. The seed is random, so that a source cannot
// create hash collisions.
type seen struct {
	seed  maphash.Seed
	slots [seenSize / 4][4]uint64
}

func newSeen() *seen { return &seen{seed: maphash.MakeSeed()} }

func (s *seen) has(hash uint64) bool {
	p := &s.slots[hash%uint64(len(s.slots))]
	return p[0] == hash || p[1] == hash || p[2] == hash || p[3] == hash
}

func (s *seen) add(hash uint64) {
	p := &s.slots[hash%uint64(len(s.slots))]
	p[0], p[1], p[2], p[3] = hash, p[0], p[1], p[2]
}

// hashLabels returns the hash of the text of a label set. The hash also depends on the format, and on the kind that
// determines which label must have a numeric value. It is never 0, because 0 marks a free slot.
func (c *copier) hashLabels(labels []byte) uint64 {
	return maphash.Bytes(c.seen.seed, labels) + uint64(c.numbered)<<1 + uint64(c.format) | 1<<63
}

// learn stores the label set of a sample that was written unchanged. It ignores a sample without labels, or with a
// timestamp or an exemplar.
func (c *copier) learn(s *sample) {
	if len(s.pairs) > 0 && s.time.to == 0 && !s.exemplarPresent {
		c.seen.add(c.hashLabels(s.line[s.name.to : s.labels.to+1]))
	}
}

// verbatim copies lines from the beginning of text unchanged. It stops at the first line that does not belong to the
// family f, is not known to be valid, or must be changed. It returns the number of bytes that it copied.
func (c *copier) verbatim(text []byte, f *family) (copied int) {
	// A prefix or label must be added, or the names of a gauge histogram's sum and count changed for text format.
	if !c.writing || c.prefix != "" || c.label != nil || f.kind == gaugeHistogram {
		return 0
	}
	if f.cut > 0 {
		return c.verbatimCut(text, f)
	}
	for copied < len(text) {
		end := bytes.IndexByte(text[copied:], '\n')
		if end < 0 || !c.isKnown(text[copied:copied+end], f) {
			break
		}
		copied += end + 1
	}
	if copied > 0 {
		c.out.write(text[:copied])
	}
	return copied
}

// verbatimCut does the same as verbatim for a family from whose names a prefix is removed. It copies line by line.
func (c *copier) verbatimCut(text []byte, f *family) (copied int) {
	for copied < len(text) {
		end := bytes.IndexByte(text[copied:], '\n') + 1
		if end == 0 || c.cut.cutLen(text[copied:copied+end]) != f.cut || !c.isKnown(text[copied+f.cut:copied+end-1], f) {
			break
		}
		c.out.write(text[copied+f.cut : copied+end])
		copied += end
	}
	return copied
}

// isKnown reports whether a line belongs to the family, has no labels or a known label set, ends in a number that
// findPlainNumber accepts, and does not repeat a series of the source. If the other conditions hold, it records the
// series.
func (c *copier) isKnown(line []byte, f *family) bool {
	at := findPlainNumber(line)
	return at < len(line) && at > 1 && line[at-1] == ' ' && c.isKnownSeries(line, at, f) && !c.seenSeries.repeats(line[:at-1], nil)
}

// isKnownSeries checks the name and the labels for isKnown. at is the position of the number. It stores the text before
// the labels in c.stem, with which the next line is compared first.
func (c *copier) isKnownSeries(line []byte, at int, f *family) bool {
	if n := len(c.stem); n > 0 && n < at && string(line[:n]) == string(c.stem) {
		return c.seen.has(c.hashLabels(line[n-1 : at-1]))
	}
	if len(f.name) >= at || string(line[:len(f.name)]) != f.name {
		return false
	}
	rest, ok := f.cutSuffix(line[len(f.name) : at-1])
	if !ok || len(rest) == 0 {
		return ok
	}
	if rest[0] != '{' || !c.seen.has(c.hashLabels(rest)) {
		return false
	}
	c.stem = append(c.stem[:0], line[:at-len(rest)]...) // includes the brace
	return true
}

// rest is the text of a sample after the family's name. cutSuffix returns rest without the suffix of the sample's name,
// and whether the sample belongs to the family. Unlike the method owns, it does not accept the suffix _created, which
// only OpenMetrics has.
func (f *family) cutSuffix(rest []byte) ([]byte, bool) {
	if len(rest) == 0 || rest[0] == '{' {
		return rest, f.plain || suffixes[f.kind][0] == ""
	}
	if f.plain {
		return nil, false
	}
	for _, s := range suffixes[f.kind] {
		if s != "" && s != "_created" && len(rest) >= len(s) && string(rest[:len(s)]) == s && (len(rest) == len(s) || rest[len(s)] == '{') {
			return rest[len(s):], true
		}
	}
	return nil, false
}

// findPlainNumber returns the position of the number at the end of a line, if it is not negative and has the same form
// in both formats. Otherwise it returns len(line).
func findPlainNumber(line []byte) int {
	at, whole := len(line), true
	if at > 1 && line[at-2] == ' ' && line[at-1] >= '0' && line[at-1] <= '9' {
		return at - 1 // most values are a single digit
	}
	for at > 0 && line[at-1] != ' ' {
		at--
		if c := line[at]; c < '0' || c > '9' {
			if c != '.' && c != 'e' && c != '+' && c != '-' {
				return len(line)
			}
			whole = false
		}
	}
	text := line[at:]
	if whole && len(text) <= 15 {
		return at
	}
	if first, last := text[0], text[len(text)-1]; first < '0' || first > '9' || last < '0' || last > '9' {
		return len(line)
	}
	if _, ok := parseFloat(text); !ok {
		return len(line)
	}
	return at
}
