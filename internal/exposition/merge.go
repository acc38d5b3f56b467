package exposition

import (
	"errors"
	"io"
	"math"
)

// renamed is what a family's name gets before it when another source has the name already.
const renamed = "app_"

// Merger writes the metrics of several sources as one exposition. The sources are copied one after the other; a family
// is the first source's that has it, see Source for what becomes of others.
type Merger struct {
	out    output
	format Format
	names  *names
	seen   *seen
	source uint16
	buf    []byte // for what is put together
	// windows are of sources that were read; two are read at a time where one of them waits.
	windows [][]byte

	later []*Spool // whose families go with those of the same name
}

// Source is one of the sources that are merged.
type Source struct {
	Format Format
	Limits Limits
	// Rename lets a family whose name another source has go by the name app_<name>; else it is left out.
	Rename bool
	// Cut is taken off some names.
	Cut Cut
	// Help describes families that the source does not describe; none if it is empty.
	Help string
	// Once is for a source that may have a series twice: the first is written.
	Once bool
}

// Cut says that names that begin with First and Next lose First. The zero Cut leaves all names as they are.
type Cut struct{ First, Next string }

// of gives how many bytes of a name are cut off.
func (c Cut) of(name []byte) int {
	if n := len(c.First); n > 0 && len(name) >= n+len(c.Next) && string(name[:n]) == c.First && string(name[n:n+len(c.Next)]) == c.Next {
		return n
	}
	return 0
}

// Format is the one that is written.
func (m *Merger) Format() Format { return m.format }

// Copied is what came of copying a source.
type Copied struct {
	Bytes int64
	// Families were written. Invalid lines were left out, and so were Duplicates, families whose names were taken, and
	// Repeated, samples of a series that was there already.
	Families, Invalid, Duplicates, Repeated int
}

// NewMerger writes to w in a format.
func NewMerger(w io.Writer, f Format) *Merger {
	return &Merger{out: output{to: w}, format: f, names: newNames(), seen: newSeen()}
}

// Reset has a merger that was closed write another exposition. It reads what it has seen before in less time.
func (m *Merger) Reset(w io.Writer, f Format) {
	m.out.reset(w)
	m.format, m.source, m.later = f, 0, nil
	m.names.forget()
}

// Rest gives up the memory that a merger needs only while it merges. Between two expositions.
func (m *Merger) Rest() { m.windows, m.out.put, m.buf = nil, nil, nil }

// Reserve keeps names of families from the sources that are copied until Release.
func (m *Merger) Reserve(names ...string) {
	for _, name := range names {
		m.names.taken[m.names.hash(name, "")] = claim{kind: gauge}
	}
}

// Release gives reserved names free.
func (m *Merger) Release(names ...string) {
	for _, name := range names {
		delete(m.names.taken, m.names.hash(name, ""))
	}
}

// Join has the families of the spools written with those of the same name and type of the sources copied next, so that
// one name is one family. Flush writes what is left of them.
func (m *Merger) Join(spools ...*Spool) { m.later = append(m.later, spools...) }

// Copy writes one source. What is valid of it is written whatever the error, which is the source's; an error of the
// writer's is told by Close.
func (m *Merger) Copy(from io.Reader, s Source) (Copied, error) { return m.Begin(from, s).Finish() }

// Copying is a source of which others may be copied in between.
type Copying struct {
	c *copier
	r *reader
}

// Begin is to copy a source as Copy does, in parts.
func (m *Merger) Begin(from io.Reader, s Source) *Copying {
	m.source++
	c := &copier{Merger: m, id: m.source, from: s.Format, rename: s.Rename, cut: s.Cut, help: s.Help, had: newHad(s.Once)}
	r := &reader{in: newLines(from, s.Limits.Bytes), format: s.Format, visit: c, most: s.Limits, cut: s.Cut}
	if n := len(m.windows); n > 0 {
		r.in.buf, m.windows = m.windows[n-1], m.windows[:n-1]
	}
	return &Copying{c, r}
}

// Until copies up to the first family whose name begins with one of the prefixes. There the source waits for Finish, and
// another may be copied meanwhile, whose names go before its own.
func (c *Copying) Until(prefixes ...string) (waits bool) {
	c.r.before = prefixes
	defer func() { c.r.before = nil }()
	return errors.Is(c.r.read(), errWaits)
}

// Finish copies the rest.
func (c *Copying) Finish() (Copied, error) {
	err := c.r.read()
	c.c.keep(c.r.in)
	return c.c.result(c.r), err
}

// keep has the next source read where this one was, unless that had lines of unusual length.
func (m *Merger) keep(in *lines) {
	if len(in.buf) == firstBuffer {
		m.windows = append(m.windows, in.buf)
	}
	in.buf, in.at, in.end = nil, 0, 0
}

func (c *copier) result(r *reader) Copied {
	return Copied{Bytes: r.in.bytes, Families: c.families, Invalid: r.invalid + r.in.tooLong, Duplicates: c.duplicates, Repeated: c.had.count()}
}

// Comment writes a line for people, where the format has such lines.
func (m *Merger) Comment(text string) {
	if m.format == Text {
		m.buf = appendComment(m.buf[:0], text)
		m.out.write(m.buf)
	}
}

// Flush writes the families of the spools that were not written with another source's.
func (m *Merger) Flush() {
	for i := range m.later {
		m.flush(i)
	}
	m.later = nil
}

// Close ends the exposition. Its error is that of the writer.
func (m *Merger) Close() error {
	m.Flush()
	if m.format == OpenMetrics {
		m.out.write([]byte("# EOF\n"))
	}
	return m.out.flush()
}

// copier writes one source's families.
type copier struct {
	*Merger
	id                   uint16
	from                 Format
	rename               bool
	cut                  Cut
	help                 string
	label                *Label // added to each sample
	had                  *had   // nil for a source that has no series twice
	original, current    family
	numbered             kind // whose samples have a label that is a number
	prefix               string
	writing              bool
	stem                 []byte // what the last line had before its labels, if it passed as it stood; the family's next ones begin so too
	families, duplicates int
}

// open decides what becomes of a family: its name is free, or it is this source's own from before, or it is renamed, or
// left out.
func (c *copier) open(f *family) {
	c.original, c.current, c.numbered, c.prefix, c.writing, c.stem = *f, *f, f.numbered(), "", true, c.stem[:0]
	if !f.helped && c.help != "" {
		c.current.help, c.current.helped = c.help, true
	}
	if c.names.claim(&c.current, c.format, c.id) {
		c.describe()
		return
	}
	if c.again() {
		return
	}
	if c.format == OpenMetrics && f.kind == counter && !f.plain {
		// foo and foo_total are two families in text. In OpenMetrics they would be one.
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
		if c.again() {
			return
		}
	}
	c.writing = false
	c.duplicates++
}

// again says whether the source goes on with a family that it left. Text has readers for that, OpenMetrics forbids it.
func (c *copier) again() bool {
	owner, ok := c.names.owner(&c.current, c.format)
	if !ok || c.format != Text || owner.source != c.id || (c.current.typed && owner.kind != c.current.kind) {
		return false
	}
	if !owner.plain {
		c.numbered = owner.kind
	}
	return true
}

// describe writes the lines before a family's first sample.
func (c *copier) describe() {
	c.families++
	name, word := c.current.described(c.format)
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
		return true // counted as a family
	}
	if suffix == "_created" && (c.format == Text || c.current.plain || !c.names.claimCreated(c.current.name)) {
		return true // text has no such samples, nor has a family whose kind was taken from it
	}
	if c.format == OpenMetrics && c.current.kind == counter && !c.current.plain && !countable(s.text(s.value)) {
		return false
	}
	if !c.validLabels(s) {
		return false
	}
	c.buf = c.appendSeries(c.buf[:0], s, suffix)
	if c.had.again(c.buf, s.text(s.time)) {
		c.had.repeated++
		return true
	}
	c.buf = c.appendPoint(c.buf, s, suffix)
	c.out.write(c.buf)
	if string(c.buf[:len(c.buf)-1]) == string(s.line) {
		c.learn(s)
	}
	return true
}

// validLabels checks what depends on the family and on the label that is added.
func (c *copier) validLabels(s *sample) bool {
	if name := c.number(); name != "" {
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

// number is the label of the family's samples that has to be a number.
func (c *copier) number() string {
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

// countable says whether a counter may have the value in OpenMetrics.
func countable(text []byte) bool {
	if wholeNumber(text, 15) {
		return true
	}
	v, ok := parseFloat(text)
	return ok && v >= 0 && !math.IsNaN(v)
}
