package exposition

import (
	"bytes"
	"hash/maphash"
)

// Most of what is merged stays as it is, and most of that looks the same over and over: Envoy has some hundred families of
// the same clusters. So a line that goes on with a family is not taken apart when its labels were seen before in a line
// that was, and was written as it stood: then its name, its labels and its value are all that it can have, and valid.
// Such lines are copied in one piece with those before and after them.

// seenSize is how many sets of labels are remembered, a power of two. An Envoy with 200 clusters has some 4000 of them,
// most of them the buckets of histograms.
const seenSize = 1 << 14

// seen remembers sets of labels by their hashes, each in one of a few places: one set too many makes the oldest of them be
// forgotten, and parsed again. The seed is random, so that nobody can make up a set that passes for another.
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

// set is the hash of labels as they are written here. The same labels are another set where one of them has to be a number,
// or to be written in another way. No hash is 0, an empty place.
func (c *copier) set(labels []byte) uint64 {
	return maphash.Bytes(c.seen.seed, labels) + uint64(c.numbered)<<1 + uint64(c.format) | 1<<63
}

// learn remembers the labels of a sample that is written as it stands.
func (c *copier) learn(s *sample) {
	if len(s.pairs) > 0 && s.time.to == 0 && !s.exemplarPresent {
		c.seen.add(c.set(s.line[s.name.to : s.labels.to+1]))
	}
}

// verbatim writes the lines at the beginning of text that go on with the family f, are known to be valid, and need no
// change. It gives how many bytes they are.
func (c *copier) verbatim(text []byte, f *family) (taken int) {
	// The sum and count of a gauge histogram have other names in text.
	if !c.writing || c.prefix != "" || c.label != nil || f.kind == gaugeHistogram {
		return 0
	}
	if f.cut > 0 {
		return c.verbatimCut(text, f)
	}
	for taken < len(text) {
		end := bytes.IndexByte(text[taken:], '\n')
		if end < 0 || !c.known(text[taken:taken+end], f) {
			break
		}
		taken += end + 1
	}
	if taken > 0 {
		c.out.write(text[:taken])
	}
	return taken
}

// verbatimCut does it line by line, for a family whose names lose their first part.
func (c *copier) verbatimCut(text []byte, f *family) (taken int) {
	for taken < len(text) {
		end := bytes.IndexByte(text[taken:], '\n') + 1
		if end == 0 || c.cut.of(text[taken:taken+end]) != f.cut || !c.known(text[taken+f.cut:taken+end-1], f) {
			break
		}
		c.out.write(text[taken+f.cut : taken+end])
		taken += end
	}
	return taken
}

// known says whether a line is of the family, with labels that were seen before, or none, and one plain number, and its
// series one that the source did not have yet.
func (c *copier) known(line []byte, f *family) bool {
	at := plainNumber(line)
	return at < len(line) && at > 1 && line[at-1] == ' ' && c.knownSeries(line, at, f) && !c.had.again(line[:at-1], nil)
}

// knownSeries is for a line with such a number at its end.
func (c *copier) knownSeries(line []byte, at int, f *family) bool {
	if n := len(c.stem); n > 0 && n < at && string(line[:n]) == string(c.stem) {
		return c.seen.has(c.set(line[n-1 : at-1]))
	}
	if len(f.name) >= at || string(line[:len(f.name)]) != f.name {
		return false
	}
	rest, ok := f.cutSuffix(line[len(f.name) : at-1])
	if !ok || len(rest) == 0 {
		return ok
	}
	if rest[0] != '{' || !c.seen.has(c.set(rest)) {
		return false
	}
	c.stem = append(c.stem[:0], line[:at-len(rest)]...) // with the brace
	return true
}

// cutSuffix cuts what a sample's name adds to the family's, as owns does. What does not go into each format stays out.
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

// plainNumber is where the number at the end of a line begins that is not negative and that each format writes as it
// stands; the line's end if there is none.
func plainNumber(line []byte) int {
	at, whole := len(line), true
	if at > 1 && line[at-2] == ' ' && line[at-1] >= '0' && line[at-1] <= '9' {
		return at - 1 // most are a single digit
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
