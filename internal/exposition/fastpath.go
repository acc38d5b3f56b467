package exposition

import (
	"bytes"
	"hash/maphash"
)

// Most lines are written unchanged, and most sets of labels repeat: Envoy has hundreds of families with the same
// clusters. A line of the current family is not parsed when its set of labels occurred before in a line that was parsed
// and written unchanged. Its name, labels and value are then known to be valid. Such lines are copied in one piece with
// the lines around them.

// seenSize is the number of remembered label sets, a power of two. An Envoy with 200 clusters has about 4000 of them,
// most with the buckets of histograms.
const seenSize = 1 << 14

// seen stores hashes of label sets, each in one of a few slots. A new hash replaces the oldest in its slots, whose
// lines are then parsed again. The seed is random, so that a source cannot construct label sets with equal hashes.
type seen struct {
	seed   maphash.Seed
	places [seenSize / 4][4]uint64
}

func newSeen() *seen { return &seen{seed: maphash.MakeSeed()} }

func (s *seen) has(hash uint64) bool {
	p := &s.places[hash%uint64(len(s.places))]
	return p[0] == hash || p[1] == hash || p[2] == hash || p[3] == hash
}

func (s *seen) add(hash uint64) {
	p := &s.places[hash%uint64(len(s.places))]
	p[0], p[1], p[2], p[3] = hash, p[0], p[1], p[2]
}

// hashLabels returns the hash of labels as the source writes them. It differs where one label must be a number, and
// between formats. It is never 0, which marks a free slot.
func (c *copier) hashLabels(labels []byte) uint64 {
	return maphash.Bytes(c.seen.seed, labels) + uint64(c.numbered)<<1 + uint64(c.format) | 1<<63
}

// learn records the label set of a sample that is written unchanged.
func (c *copier) learn(s *sample) {
	if len(s.pairs) > 0 && s.time.to == 0 && !s.exemplarPresent {
		c.seen.add(c.hashLabels(s.line[s.name.to : s.labels.to+1]))
	}
}

// verbatim copies lines from the beginning of text that belong to the family f, are known to be valid, and need no
// change. It returns the number of bytes that it copied.
func (c *copier) verbatim(text []byte, f *family) (taken int) {
	// The sum and count of a gauge histogram have other names in text format.
	if !c.writing || c.prefix != "" || c.label != nil || f.kind == gaugeHistogram {
		return 0
	}
	if f.cut > 0 {
		return c.verbatimCut(text, f)
	}
	for taken < len(text) {
		end := bytes.IndexByte(text[taken:], '\n')
		if end < 0 || !c.isKnown(text[taken:taken+end], f) {
			break
		}
		taken += end + 1
	}
	if taken > 0 {
		c.out.write(text[:taken])
	}
	return taken
}

// verbatimCut copies line by line, for a family whose names lose their first part.
func (c *copier) verbatimCut(text []byte, f *family) (taken int) {
	for taken < len(text) {
		end := bytes.IndexByte(text[taken:], '\n') + 1
		if end == 0 || c.cut.cutLen(text[taken:taken+end]) != f.cut || !c.isKnown(text[taken+f.cut:taken+end-1], f) {
			break
		}
		c.out.write(text[taken+f.cut : taken+end])
		taken += end
	}
	return taken
}

// isKnown reports whether a line belongs to the family, has no labels or a known label set, ends in one plain number,
// and is the first of its series in the source.
func (c *copier) isKnown(line []byte, f *family) bool {
	at := plainNumber(line)
	return at < len(line) && at > 1 && line[at-1] == ' ' && c.isKnownSeries(line, at, f) && !c.seenSeries.repeats(line[:at-1], nil)
}

// isKnownSeries is isKnown for a line whose number begins at at.
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

// cutSuffix removes the suffix that a sample's name adds to the family's, as owns does. Suffixes that only one format
// has are not accepted.
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

// plainNumber returns the position of the number at the end of a line if it is not negative and both formats write it
// the same way. Otherwise it returns the length of the line.
func plainNumber(line []byte) int {
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
