package config

import (
	"cmp"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// document is one document being read: where it is, and what is to be said of it.
type document struct {
	file     string
	offset   int // lines of the file before the text that the nodes were read from
	key      Key
	origin   Position
	inert    bool // without effect by its kind
	kindless bool // its kind is none that is known
	nameless bool // it cannot be told which resource it is meant to be
	// startsProxies: whoever reads it starts the proxies that it is for.
	startsProxies bool
	places        map[string]Position
	problems      []Problem
	refused       bool
}

func (d *document) at(n *yaml.Node) Position {
	return Position{File: d.file, Line: n.Line + d.offset, Column: n.Column}
}

// refuse records an error: the document is not taken.
func (d *document) refuse(n *yaml.Node, field, value, message, remedy string) {
	d.refuseAt(d.at(n), field, value, message, remedy)
}

func (d *document) refuseAt(at Position, field, value, message, remedy string) {
	d.refuseAs(InvalidValue, at, field, value, message, remedy)
}

// refuseAs is refuseAt for a problem that has a code of its own.
func (d *document) refuseAs(code Code, at Position, field, value, message, remedy string) {
	d.refused = true
	d.reportAs(code, Error, at, field, value, message, remedy)
}

// report records a problem. Its Key is filled in when the document has been read (see named).
func (d *document) report(s Severity, at Position, field, value, message, remedy string) {
	d.reportAs(usualCode(s), s, at, field, value, message, remedy)
}

func (d *document) reportAs(code Code, s Severity, at Position, field, value, message, remedy string) {
	d.problems = append(d.problems, Problem{
		Code: code, Severity: s, At: at, Field: field, Value: shorten(value), Message: message, Remedy: remedy,
	})
}

// named gives the problems with the name of the resource, as far as it could be read, in the order of the text.
func (d *document) named() []Problem {
	for i := range d.problems {
		d.problems[i].Key = d.key
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		return cmp.Or(comparePositions(a.At, b.At), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Value, b.Value))
	})
	if more := len(d.problems) - maxProblems; more > 0 {
		d.problems = append(d.problems[:maxProblems:maxProblems], Problem{
			Code: d.problems[0].Code, Severity: d.problems[0].Severity, Key: d.key, At: d.origin,
			Message: fmt.Sprintf("%d more problems in this document are not listed", more), Remedy: "mend those that are",
		})
	}
	return d.problems
}

// maxProblems is how many are told of one document: a person reads no more, and a file of nonsense has one a line.
const maxProblems = 100

// place is where a field stands, or its nearest parent that is known, or the document.
func (d *document) place(path string) Position {
	return (&Resource{Origin: d.origin, Places: d.places}).Place(path)
}

// resolve follows an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// extent is the size of a node with its aliases followed.
type extent struct {
	values int
	height int
}

// measure walks a document once, however often its aliases repeat a part. It finds what makes a document impossible to
// read (aliases that contain themselves or multiply, keys given twice), and takes merge keys ("<<") apart.
type measure struct {
	d       *document
	done    map[*yaml.Node]extent // of nodes with an anchor
	open    map[*yaml.Node]bool
	written int
	merged  int
	ok      bool
}

// bounded says whether the document can be walked without fear, and prepares it.
func (d *document) bounded(root *yaml.Node) bool {
	m := &measure{d: d, done: map[*yaml.Node]extent{}, open: map[*yaml.Node]bool{}, ok: true}
	d.origin = d.at(root)
	e := m.visit(root, 0)
	if m.ok && e.values > m.written+maxExpansion {
		m.fail(root, "", fmt.Sprintf("its aliases make it %d values, of which %d are written", e.values, m.written), "repeat less by alias")
	}
	return m.ok
}

func (m *measure) fail(n *yaml.Node, value, message, remedy string) {
	m.ok = false
	m.d.refuse(n, "", value, message, remedy)
}

func (m *measure) visit(n *yaml.Node, depth int) extent {
	if !m.ok {
		return extent{}
	}
	if n.Kind == yaml.AliasNode {
		return m.visitAlias(n, depth)
	}
	m.written++
	if depth > MaxNesting {
		m.fail(n, "", fmt.Sprintf("nested more than %d deep", MaxNesting), "flatten it")
		return extent{}
	}
	if n.Anchor != "" {
		m.open[n] = true
	}
	e := extent{values: 1}
	for _, child := range n.Content {
		c := m.visit(child, depth+1)
		// Bounded, so that the sum cannot overflow however the aliases multiply.
		e.values = min(e.values+c.values, 1<<40)
		e.height = max(e.height, c.height+1)
	}
	if n.Kind == yaml.MappingNode && m.ok {
		m.unmerge(n)
		m.unique(n)
	}
	if n.Anchor != "" {
		delete(m.open, n)
		m.done[n] = e
	}
	return e
}

func (m *measure) visitAlias(n *yaml.Node, depth int) extent {
	target := n.Alias
	if target == nil || m.open[target] {
		m.fail(n, "*"+n.Value, "the alias contains itself", "write the value out")
		return extent{}
	}
	e := m.done[target]
	if depth+e.height > MaxNesting {
		m.fail(n, "*"+n.Value, fmt.Sprintf("nested more than %d deep", MaxNesting), "flatten it")
	}
	return e
}

// unmerge puts what "<<" merges into the mapping in its place. What the mapping says itself goes before.
func (m *measure) unmerge(n *yaml.Node) {
	var own, merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key := n.Content[i]; key.ShortTag() == "!!merge" {
			merged = append(merged, m.mergedPairs(n.Content[i+1])...)
		} else {
			own = append(own, key, n.Content[i+1])
		}
	}
	if merged == nil {
		return
	}
	if m.merged += len(merged) / 2; m.merged > maxExpansion {
		m.fail(n, "<<", fmt.Sprintf("merge keys make it more than %d fields", maxExpansion), "repeat less by alias")
		return
	}
	has := map[string]bool{}
	for i := 0; i < len(own); i += 2 {
		has[own[i].Value] = true
	}
	for i := 0; i < len(merged); i += 2 {
		if key := merged[i]; !has[key.Value] {
			has[key.Value] = true
			own = append(own, key, merged[i+1])
		}
	}
	n.Content = own
}

func (m *measure) mergedPairs(n *yaml.Node) []*yaml.Node {
	n = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		return n.Content
	case yaml.SequenceNode:
		var pairs []*yaml.Node
		for _, item := range n.Content {
			if item = resolve(item); item.Kind == yaml.MappingNode {
				pairs = append(pairs, item.Content...)
			}
		}
		return pairs
	}
	m.fail(n, n.Value, "only a mapping can be merged with <<", "refer to an anchor of a mapping")
	return nil
}

func (m *measure) unique(n *yaml.Node) {
	first := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if key.Kind != yaml.ScalarNode {
			m.fail(key, "", "a list or mapping cannot be the name of a field", "write name: value")
			return
		}
		if before := first[key.Value]; before != nil {
			// Not a failure of the measure: the rest of the document can be read, and more be said of it.
			m.d.refuse(key, key.Value, "", fmt.Sprintf("given twice; first at line %d", before.Line+m.d.offset), "keep one of the two")
			continue
		}
		first[key.Value] = key
	}
}
