package config

import (
	"cmp"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// document is the state of reading one document: its position, identity and problems.
type document struct {
	file        string
	offset      int // number of lines in the file before the parsed text
	key         Key
	origin      Position
	inert       bool // the kind has no effect here
	unknownKind bool // the kind is unknown
	invalidName bool // name or namespace is invalid, so the resource is not identified
	// startsProxies is set if the control plane starts the proxies itself.
	startsProxies bool
	positions     map[string]Position
	problems      []Problem
	refused       bool
}

func (d *document) nodePosition(n *yaml.Node) Position {
	return Position{File: d.file, Line: n.Line + d.offset, Column: n.Column}
}

// refuse records an error. A document with an error is not put in force.
func (d *document) refuse(n *yaml.Node, field, value, message, remedy string) {
	d.refuseAt(d.nodePosition(n), field, value, message, remedy)
}

func (d *document) refuseAt(at Position, field, value, message, remedy string) {
	d.refuseAs(InvalidValue, at, field, value, message, remedy)
}

// refuseAs is like refuseAt, but sets the problem's code instead of InvalidValue.
func (d *document) refuseAs(code Code, at Position, field, value, message, remedy string) {
	d.refused = true
	d.reportAs(code, Error, at, field, value, message, remedy)
}

// report records a problem. It does not set the problem's Key: sortedProblems does so after the document was read.
func (d *document) report(s Severity, at Position, field, value, message, remedy string) {
	d.reportAs(usualCode(s), s, at, field, value, message, remedy)
}

func (d *document) reportAs(code Code, s Severity, at Position, field, value, message, remedy string) {
	d.problems = append(d.problems, Problem{
		Code: code, Severity: s, At: at, Field: field, Value: shorten(value), Message: message, Remedy: remedy,
	})
}

// sortedProblems returns the problems in the order of the text. It sets their Key, as far as the document's key could
// be read, and drops those after the first maxProblems.
func (d *document) sortedProblems() []Problem {
	for i := range d.problems {
		d.problems[i].Key = d.key
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		return cmp.Or(ComparePositions(a.At, b.At), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Value, b.Value))
	})
	if more := len(d.problems) - maxProblems; more > 0 {
		d.problems = append(d.problems[:maxProblems:maxProblems], Problem{
			Code: d.problems[0].Code, Severity: d.problems[0].Severity, Key: d.key, At: d.origin,
			Message: fmt.Sprintf("%d more problems in this document are not listed", more), Remedy: "fix the listed problems",
		})
	}
	return d.problems
}

// maxProblems limits the reported problems of one document. An invalid file may have one per line.
const maxProblems = 100

// fieldPosition returns the position of the field at path, of its nearest known parent, or of the document.
func (d *document) fieldPosition(path string) Position {
	return (&Resource{Origin: d.origin, Positions: d.positions}).PositionOf(path)
}

// followAlias returns the node to which the alias n refers, or n if it is not an alias.
func followAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// nodeSize is the size of a node with its aliases expanded.
type nodeSize struct {
	values int
	height int
}

// sizeChecker visits each node of a document once, even if several aliases refer to it. It refuses documents with
// aliases that contain themselves or multiply, and with duplicate keys. It expands merge keys ("<<").
type sizeChecker struct {
	d       *document
	sizes   map[*yaml.Node]nodeSize // nodes with an anchor
	open    map[*yaml.Node]bool
	written int
	merged  int
	ok      bool
}

// checkSize expands the merge keys of the document, and refuses duplicate keys. It returns false if the document is too
// large or cannot be read (see sizeChecker).
func (d *document) checkSize(root *yaml.Node) bool {
	m := &sizeChecker{d: d, sizes: map[*yaml.Node]nodeSize{}, open: map[*yaml.Node]bool{}, ok: true}
	d.origin = d.nodePosition(root)
	e := m.visit(root, 0)
	if m.ok && e.values > m.written+maxExpansion {
		m.fail(root, "", fmt.Sprintf("aliases make the document too large: it has %d values, of which only %d are written out", e.values, m.written), "use fewer aliases")
	}
	return m.ok
}

func (m *sizeChecker) fail(n *yaml.Node, value, message, remedy string) {
	m.ok = false
	m.d.refuse(n, "", value, message, remedy)
}

func (m *sizeChecker) visit(n *yaml.Node, depth int) nodeSize {
	if !m.ok {
		return nodeSize{}
	}
	if n.Kind == yaml.AliasNode {
		return m.visitAlias(n, depth)
	}
	m.written++
	if depth > maxNesting {
		m.fail(n, "", fmt.Sprintf("the nesting is deeper than %d levels", maxNesting), "use fewer levels of lists and mappings")
		return nodeSize{}
	}
	if n.Anchor != "" {
		m.open[n] = true
	}
	e := nodeSize{values: 1}
	for _, child := range n.Content {
		c := m.visit(child, depth+1)
		// The limit prevents an integer overflow when nested aliases multiply the number of values.
		e.values = min(e.values+c.values, 1<<40)
		e.height = max(e.height, c.height+1)
	}
	if n.Kind == yaml.MappingNode && m.ok {
		m.expandMergeKeys(n)
		m.checkUniqueKeys(n)
	}
	if n.Anchor != "" {
		delete(m.open, n)
		m.sizes[n] = e
	}
	return e
}

func (m *sizeChecker) visitAlias(n *yaml.Node, depth int) nodeSize {
	target := n.Alias
	if target == nil || m.open[target] {
		m.fail(n, "*"+n.Value, "the alias contains itself", "write the value out")
		return nodeSize{}
	}
	e := m.sizes[target]
	if depth+e.height > maxNesting {
		m.fail(n, "*"+n.Value, fmt.Sprintf("the nesting is deeper than %d levels", maxNesting), "use fewer levels of lists and mappings")
	}
	return e
}

// expandMergeKeys replaces "<<" by the merged fields. Fields of the mapping itself have precedence.
func (m *sizeChecker) expandMergeKeys(n *yaml.Node) {
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
		m.fail(n, "<<", fmt.Sprintf("merge keys make the document too large: they add more than %d fields", maxExpansion), "use fewer merge keys")
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

func (m *sizeChecker) mergedPairs(n *yaml.Node) []*yaml.Node {
	n = followAlias(n)
	switch n.Kind {
	case yaml.MappingNode:
		return n.Content
	case yaml.SequenceNode:
		var pairs []*yaml.Node
		for _, item := range n.Content {
			if item = followAlias(item); item.Kind == yaml.MappingNode {
				pairs = append(pairs, item.Content...)
			}
		}
		return pairs
	}
	m.fail(n, n.Value, "only a mapping can be merged with <<", "refer to an anchor of a mapping")
	return nil
}

func (m *sizeChecker) checkUniqueKeys(n *yaml.Node) {
	first := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := followAlias(n.Content[i])
		if key.Kind != yaml.ScalarNode {
			m.fail(key, "", "a list or mapping cannot be the name of a field", "write name: value")
			return
		}
		if before := first[key.Value]; before != nil {
			// This does not stop the check: the rest of the document can still be read and reported.
			m.d.refuse(key, key.Value, "", fmt.Sprintf("duplicate field; first at line %d", before.Line+m.d.offset), "remove one of the two")
			continue
		}
		first[key.Value] = key
	}
}
