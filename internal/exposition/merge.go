package exposition

import (
	"errors"
	"io"
	"math"
	"slices"
	"strings"
)

// renamed is the prefix that is added to the name of a family if the name belongs to another source.
const renamed = "app_"

// Merger writes the metrics of several sources as one exposition, one source after another. A family name belongs to
// the first source that has it. In later sources, Source.Rename determines what happens to a family of the same name. A
// Merger is not safe for concurrent use.
type Merger struct {
	out    output
	format Format
	names  *names
	seen   *seen
	source uint16
	buf    []byte // for lines under construction
	// windows contains read buffers of finished sources that can be used again. Two are in use while one source is
	// paused (see CopyUntil).
	windows [][]byte

	later []*Spool // spools that Join added; their families are written with families of the same name
}

// Source is the configuration of one source.
type Source struct {
	Format Format
	Limits Limits
	// Rename determines how a family is written whose name belongs to another source: as app_<name> if Rename is true.
	// If Rename is false, such a family is dropped.
	Rename bool
	// Cut specifies a prefix that is removed from some names.
	Cut Cut
	// Help is the HELP text for families without a HELP line. If it is empty, they have none.
	Help string
	// Reserved contains name prefixes. Families whose names have one of them are dropped.
	Reserved []string
	// HiddenSuffixes contains name suffixes. Families whose names in text format have one of them are dropped without a
	// report.
	HiddenSuffixes []string
	// Unpack replaces packed labels (see PackedPrefix).
	Unpack bool
	// Once drops repeated samples of a series and writes only the first one.
	Once bool
}

// Cut removes First from names that begin with First followed by Next. The zero Cut changes no name.
type Cut struct{ First, Next string }

// cutLen returns how many bytes are removed from the beginning of a name.
func (c Cut) cutLen(name []byte) int {
	if n := len(c.First); n > 0 && len(name) >= n+len(c.Next) && string(name[:n]) == c.First && string(name[n:n+len(c.Next)]) == c.Next {
		return n
	}
	return 0
}

// Format returns the format of the output.
func (m *Merger) Format() Format { return m.format }

// CopyResult is the result of copying a source.
type CopyResult struct {
	Bytes int64
	// Families is the number of written families. The other fields count what was dropped: Invalid lines, Duplicates
	// (families whose names belong to another source), and Repeated samples of a series.
	Families, Invalid, Duplicates, Repeated int
	// Reserved is the number of families that were dropped because their names have a reserved prefix.
	Reserved int
}

// NewMerger returns a Merger that writes to w in the format f.
func NewMerger(w io.Writer, f Format) *Merger {
	return &Merger{out: output{to: w}, format: f, names: newNames(), seen: newSeen()}
}

// Reset prepares a closed Merger for another exposition. It retains the known label sets, so that the next exposition
// is faster.
func (m *Merger) Reset(w io.Writer, f Format) {
	m.out.reset(w)
	m.format, m.source, m.later = f, 0, nil
	m.names.reset()
}

// Reserve drops families with these names from all sources until Release is called.
func (m *Merger) Reserve(names ...string) {
	for _, name := range names {
		m.names.taken[m.names.hash(name, "")] = claim{kind: gauge}
	}
}

// Release permits families with names that Reserve has reserved.
func (m *Merger) Release(names ...string) {
	for _, name := range names {
		delete(m.names.taken, m.names.hash(name, ""))
	}
}

// Join adds spools. The Merger writes a family of a spool directly after the family of a later source that has the same
// name and type, so that each name occurs once. Flush writes the other families of the spools.
func (m *Merger) Join(spools ...*Spool) { m.later = append(m.later, spools...) }

// Copy writes one source. If the source cannot be read completely, it writes the valid part. Close returns errors of
// the writer.
func (m *Merger) Copy(from io.Reader, s Source) (CopyResult, error) { return m.Begin(from, s).Finish() }

// SourceCopy copies a source in parts, so that other sources can be copied in between.
type SourceCopy struct {
	c *copier
	r *reader
}

// Begin starts a copy of a source in parts.
func (m *Merger) Begin(from io.Reader, s Source) *SourceCopy {
	m.source++
	c := &copier{Merger: m, id: m.source, from: s.Format, rename: s.Rename, hidden: s.HiddenSuffixes, cut: s.Cut, help: s.Help, seenSeries: newSeenSeries(s.Once)}
	r := &reader{in: newLines(from, s.Limits.Bytes), format: s.Format, visit: c, limits: s.Limits, cut: s.Cut, reserved: s.Reserved}
	if s.Unpack {
		c.unpacker, r.line.anyBytes = &unpacker{}, true
	}
	if n := len(m.windows); n > 0 {
		r.in.buf, m.windows = m.windows[n-1], m.windows[:n-1]
	}
	return &SourceCopy{c, r}
}

// CopyUntil copies the source up to the first family whose name has one of the prefixes. waits reports whether there is
// such a family. If so, the caller may copy another source, whose family names then have precedence, before it calls
// Finish.
func (c *SourceCopy) CopyUntil(prefixes ...string) (waits bool) {
	c.r.before = prefixes
	defer func() { c.r.before = nil }()
	return errors.Is(c.r.read(), errWaits)
}

// Finish copies the rest of the source. The result counts the whole source.
func (c *SourceCopy) Finish() (CopyResult, error) {
	err := c.r.read()
	c.c.recycle(c.r.in)
	return c.c.result(c.r), err
}

// recycle stores a source's read buffer for the next source, unless the buffer has grown.
func (m *Merger) recycle(in *lines) {
	if len(in.buf) == firstBuffer {
		m.windows = append(m.windows, in.buf)
	}
	in.buf, in.at, in.end = nil, 0, 0
}

func (c *copier) result(r *reader) CopyResult {
	return CopyResult{Bytes: r.in.bytes, Families: c.families, Invalid: r.invalid + r.in.tooLong, Duplicates: c.duplicates, Repeated: c.seenSeries.count(), Reserved: r.refused}
}

// Comment writes a comment line. It does nothing in OpenMetrics, which has no comments.
func (m *Merger) Comment(text string) {
	if m.format == Text {
		m.buf = appendComment(m.buf[:0], text)
		m.out.write(m.buf)
	}
}

// Flush writes the families of the spools that were not written together with a family of a source.
func (m *Merger) Flush() {
	for i := range m.later {
		m.flush(i)
	}
	m.later = nil
}

// Close finishes the exposition. It returns the first error of the writer.
func (m *Merger) Close() error {
	m.Flush()
	if m.format == OpenMetrics {
		m.out.write([]byte("# EOF\n"))
	}
	return m.out.flush()
}

// copier writes the families of one source.
type copier struct {
	*Merger
	id                   uint16
	from                 Format
	rename               bool
	hidden               []string
	cut                  Cut
	help                 string
	label                *Label      // added to each sample
	unpacker             *unpacker   // nil if packed labels are not replaced
	seenSeries           *seenSeries // nil if repeated series are not dropped
	original, current    family
	numbered             kind // the type that determines which label must have a numeric value (see numericLabel)
	prefix               string
	writing              bool
	stem                 []byte // if the last line was copied unchanged, its text before the labels
	families, duplicates int
}

// open determines how a family is written: with its own name, as a continuation of an earlier family of the source,
// with another name, or not at all.
func (c *copier) open(f *family) {
	c.original, c.current, c.numbered, c.prefix, c.writing, c.stem = *f, *f, f.numericLabelKind(), "", true, c.stem[:0]
	textName, _ := f.typeLine(Text)
	if slices.ContainsFunc(c.hidden, func(suffix string) bool { return strings.HasSuffix(textName, suffix) }) {
		c.writing = false
		return
	}
	if !f.helped && c.help != "" {
		c.current.help, c.current.helped = c.help, true
	}
	if c.names.claim(&c.current, c.format, c.id) {
		c.describe()
		return
	}
	if c.continues() {
		return
	}
	if c.format == OpenMetrics && f.kind == counter && !f.plain {
		// In text format, foo and foo_total are different families. In OpenMetrics they would be the same family.
		c.current.name, c.current.plain = f.name+"_total", true
		if c.names.claim(&c.current, c.format, c.id) {
			c.describe()
			return
		}
		c.current.name, c.current.plain = f.name, f.plain
	}
	if c.rename {
		c.current.name, c.prefix = renamed+f.name, renamed
		if c.names.claim(&c.current, c.format, c.id) {
			c.describe()
			return
		}
		if c.continues() {
			return
		}
	}
	c.writing = false
	c.duplicates++
}

// continues reports whether the family continues an earlier family of the same source. Readers of the text format
// accept a continuation, but OpenMetrics forbids it.
func (c *copier) continues() bool {
	owner, ok := c.names.owner(&c.current, c.format)
	if !ok || c.format != Text || owner.source != c.id || (c.current.typed && owner.kind != c.current.kind) {
		return false
	}
	if !owner.plain {
		c.numbered = owner.kind
	}
	return true
}

// describe writes the HELP, TYPE and UNIT lines of a family.
func (c *copier) describe() {
	c.families++
	name, word := c.current.typeLine(c.format)
	b := c.buf[:0]
	if c.current.helped {
		b = append(append(append(append(b, "# HELP "...), name...), ' '), escapedHelp(c.current.help, c.format)...)
		b = append(b, '\n')
	}
	if c.current.typed {
		b = append(append(append(append(b, "# TYPE "...), name...), ' '), word...)
		b = append(b, '\n')
	}
	if c.format == OpenMetrics && c.current.unit != "" && validUnit(name, c.current.unit) {
		b = append(append(append(append(b, "# UNIT "...), name...), ' '), c.current.unit...)
		b = append(b, '\n')
	}
	c.out.write(b)
	c.buf = b
}

func (c *copier) sample(s *sample, suffix string) bool {
	if !c.writing {
		return true // the family is hidden, or is counted as a duplicate
	}
	if c.unpacker != nil {
		unpacked, ok := c.unpacker.unpack(s, c.from)
		if !ok {
			return false
		}
		s = unpacked
	}
	if suffix == "_created" && (c.format == Text || c.current.plain || !c.names.claimCreated(c.current.name)) {
		return true // text format and plain families have no such samples, or another family has the name
	}
	if c.format == OpenMetrics && c.current.kind == counter && !c.current.plain && !isCounterValue(s.text(s.value)) {
		return false
	}
	if !c.validLabels(s) {
		return false
	}
	c.buf = c.appendSeries(c.buf[:0], s, suffix)
	if c.seenSeries.repeats(c.buf, s.text(s.time)) {
		c.seenSeries.repeated++
		return true
	}
	c.buf = c.appendPoint(c.buf, s, suffix)
	c.out.write(c.buf)
	if string(c.buf[:len(c.buf)-1]) == string(s.line) {
		c.learn(s)
	}
	return true
}

// validLabels reports whether the label that must have a numeric value (see numericLabel) has one. It returns false
// also if the sample has both c.label's name and its exported_ name, because c.label can then not be added.
func (c *copier) validLabels(s *sample) bool {
	if name := c.numericLabel(); name != "" {
		if p, ok := s.find(name); ok {
			if _, number := parseFloat(s.text(p.value)); !number {
				return false
			}
		}
	}
	if c.label == nil {
		return true
	}
	_, has := s.find(c.label.Name)
	_, exported := s.find(exported + c.label.Name)
	return !has || !exported
}

// numericLabel returns the name of the label that must contain a number in samples of this type (quantile or le). It
// returns "" if there is none.
func (c *copier) numericLabel() string {
	switch c.numbered {
	case summary:
		return "quantile"
	case histogram, gaugeHistogram:
		return "le"
	}
	return ""
}

func (c *copier) end() {
	if c.writing {
		c.join(c.later, &c.original, c.prefix)
	}
	c.writing = false
}

// isCounterValue reports whether OpenMetrics accepts the value for a counter.
func isCounterValue(text []byte) bool {
	if wholeNumber(text, 15) {
		return true
	}
	v, ok := parseFloat(text)
	return ok && v >= 0 && !math.IsNaN(v)
}
