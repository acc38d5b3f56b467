package exposition

import (
	"bytes"
	"io"
)

// Spool stores a whole source in memory, so that its families can be written together with families of the same name in
// other sources.
type Spool struct {
	label      Label
	format     Format
	families   []*spooled
	byName     map[string]*spooled
	current    *spooled
	seenSeries *seenSeries
	result     CopyResult
}

// spooled is a family of a Spool with its sample lines.
type spooled struct {
	family
	lines   [][]byte
	written bool
}

// NewSpool parses the text of a source. When the samples are written, the label l is added to them. If NewSpool returns
// an error, the Spool contains the valid part. The caller must not change the text afterwards.
func NewSpool(text []byte, l Label, s Source) (*Spool, error) {
	sp := &Spool{label: l, format: s.Format, byName: make(map[string]*spooled), seenSeries: newSeenSeries(s.Once)}
	r := &reader{in: wholeText(text), format: s.Format, visit: sp, limits: s.Limits, cut: s.Cut, reserved: s.Reserved}
	err := r.read()
	sp.result = CopyResult{Bytes: int64(len(text)), Invalid: r.invalid + r.in.tooLong, Reserved: r.refused}
	return sp, err
}

// wholeText returns a lines that reads from text without a copy.
func wholeText(text []byte) *lines {
	return &lines{buf: text[:len(text):len(text)], end: len(text), bytes: int64(len(text)), err: io.EOF}
}

// Result returns the counts of the spool. They are complete after Merger.Flush.
func (s *Spool) Result() CopyResult {
	s.result.Repeated = s.seenSeries.count()
	return s.result
}

func (s *Spool) open(f *family) {
	if s.current = s.byName[f.name]; s.current != nil && (s.current.kind == f.kind || !f.typed) && s.current.plain == f.plain {
		return // the family continues an earlier one of the same name
	}
	s.current = &spooled{family: *f}
	s.families = append(s.families, s.current)
	if s.byName[f.name] == nil {
		s.byName[f.name] = s.current
	}
}

func (s *Spool) sample(line *sample, _ string) bool {
	f := s.current
	// Consecutive lines are stored as one piece to save memory.
	if n := len(f.lines); n > 0 && isAdjacent(f.lines[n-1], line.line) {
		last := f.lines[n-1]
		f.lines[n-1] = last[:len(last)+1+len(line.line)]
		return true
	}
	f.lines = append(f.lines, line.line)
	return true
}

// isAdjacent reports whether b follows a in the same text, separated only by the newline.
func isAdjacent(a, b []byte) bool {
	return cap(a) > len(a)+len(b) && len(b) > 0 && &a[:len(a)+2][len(a)+1] == &b[0]
}

// verbatim returns 0, so that all lines are passed to sample.
func (s *Spool) verbatim([]byte, *family) int { return 0 }

func (s *Spool) end() {}

// join writes the spools' samples for the family f, which was just written. prefix is the prefix that was added to the
// name of f.
func (m *Merger) join(spools []*Spool, f *family, prefix string) {
	for _, sp := range spools {
		if other := sp.byName[f.name]; other != nil && !other.written && other.kind == f.kind && other.plain == f.plain {
			m.write(&copier{Merger: m, from: sp.format, label: &sp.label, seenSeries: sp.seenSeries, numbered: other.numericLabelKind(), current: *f, prefix: prefix, writing: true}, sp, other)
		}
	}
}

// flush writes the remaining families of the i-th spool, each together with the families of the same name in later
// spools.
func (m *Merger) flush(i int) {
	sp := m.later[i]
	m.source++
	for _, f := range sp.families {
		if f.written {
			continue
		}
		c := &copier{Merger: m, id: m.source, from: sp.format, label: &sp.label, seenSeries: sp.seenSeries, rename: true}
		c.open(&f.family)
		m.write(c, sp, f)
		sp.result.Duplicates += c.duplicates
		if c.writing {
			m.join(m.later[i+1:], &f.family, c.prefix)
		}
	}
}

func (m *Merger) write(c *copier, sp *Spool, f *spooled) {
	f.written = true
	if !c.writing {
		return
	}
	sp.result.Families++
	var s sample
	for _, piece := range f.lines {
		for line := range bytes.SplitSeq(piece, []byte("\n")) {
			if !s.parse(bytes.TrimSuffix(line, []byte("\r")), sp.format) {
				continue
			}
			suffix, ok := f.owns(s.text(s.name))
			if !ok || !c.sample(&s, suffix) {
				sp.result.Invalid++
			}
		}
	}
	f.lines = nil
}
