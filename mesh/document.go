package mesh

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// maxDepth bounds how deep a document may nest; an alias that contains itself would go on for ever.
const maxDepth = 64

// document reads one YAML document strictly: whatever it does not expect becomes a problem with its place, and reading
// goes on, so that the author sees all of them at once.
type document struct {
	file     string
	problems []config.Problem
}

// value is one node of a document, and where it stands in it.
type value struct {
	doc   *document
	node  *yaml.Node
	path  string
	depth int
}

func (v value) at() config.Position {
	return config.Position{File: v.doc.file, Line: v.node.Line, Column: v.node.Column}
}

// problem records what is wrong with the value, and what to do about it.
func (v value) problem(remedy, format string, args ...any) {
	v.doc.problems = append(v.doc.problems, config.Problem{
		Severity: config.Error,
		At:       v.at(),
		Field:    v.path,
		Value:    v.written(),
		Message:  fmt.Sprintf(format, args...),
		Remedy:   remedy,
	})
}

// written is a scalar as it stands in the file, cut to what a message can hold.
func (v value) written() string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	if len(v.node.Value) > 80 {
		return v.node.Value[:80] + "…"
	}
	return v.node.Value
}

func (v value) child(n *yaml.Node, path string) value {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return value{doc: v.doc, node: n, path: path, depth: v.depth + 1}
}

// null says whether the field was left empty, which counts as not given.
func (v value) null() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!null" }

// what names the YAML type of the value for messages.
func (v value) what() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch v.node.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "empty"
	}
	return "a string"
}

// broken says whether a problem was found in one of the mapping's fields, so that it cannot be relied on.
func (v value) broken(field string) bool {
	path := v.join(field)
	return slices.ContainsFunc(v.doc.problems, func(p config.Problem) bool {
		rest, within := strings.CutPrefix(p.Field, path)
		return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// pair is one field of a mapping; key is where its name stands.
type pair struct {
	name string
	key  value
	val  value
}

func (v value) pairs() []pair {
	if v.null() {
		return nil
	}
	if v.node.Kind != yaml.MappingNode {
		v.problem("write `field: value` lines here", "a mapping is wanted here, this is %s", v.what())
		return nil
	}
	if v.depth > maxDepth {
		v.problem("", "nested more than %d deep", maxDepth)
		return nil
	}
	seen := map[string]bool{}
	var out []pair
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		name := v.node.Content[i].Value
		p := pair{name, v.child(v.node.Content[i], v.join(name)), v.child(v.node.Content[i+1], v.join(name))}
		if seen[name] {
			p.key.problem("keep one of them", "the field is given twice")
			continue
		}
		seen[name] = true
		out = append(out, p)
	}
	return out
}

func (v value) join(name string) string {
	if v.path == "" {
		return name
	}
	return v.path + "." + name
}

// object reads a mapping whose fields are known. It returns those that were given.
func (v value) object(fields map[string]func(value)) map[string]bool {
	given := map[string]bool{}
	for _, p := range v.pairs() {
		read, ok := fields[p.name]
		if !ok {
			p.key.problem(fieldRemedy(p.name, fields), "unknown field")
			continue
		}
		if !p.val.null() {
			given[p.name] = true
			read(p.val)
		}
	}
	return given
}

// lookup is the field of a mapping that was read before, if it is there and not empty.
func (v value) lookup(name string) (value, bool) {
	for i := 0; v.node.Kind == yaml.MappingNode && i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == name {
			field := v.child(v.node.Content[i+1], v.join(name))
			return field, !field.null()
		}
	}
	return v, false
}

// field is the place for a problem with one of the mapping's fields: the field, or the mapping where it is missing.
func (v value) field(name string) value {
	field, _ := v.lookup(name)
	return field
}

// items are those of a list in one of the mapping's fields.
func (v value) items(field string) []value {
	if list, ok := v.lookup(field); ok {
		return list.list()
	}
	return nil
}

// entries are those of a mapping in one of the mapping's fields.
func (v value) entries(field string) []pair {
	if mapping, ok := v.lookup(field); ok {
		return mapping.pairs()
	}
	return nil
}

// fieldRemedy proposes the field that was probably meant, or lists those there are.
func fieldRemedy(name string, fields map[string]func(value)) string {
	known := make([]string, 0, len(fields))
	for f := range fields {
		known = append(known, f)
	}
	sort.Strings(known)
	if near := nearest.Name(name, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "the fields here are " + strings.Join(known, ", ")
}

func (v value) list() []value {
	if v.null() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.problem("put `- ` before each item", "a list is wanted here, this is %s", v.what())
		return nil
	}
	if v.depth > maxDepth {
		v.problem("", "nested more than %d deep", maxDepth)
		return nil
	}
	out := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		out[i] = v.child(n, fmt.Sprintf("%s[%d]", v.path, i))
	}
	return out
}

func (v value) string(into *string) {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
		remedy := ""
		if v.node.Kind == yaml.ScalarNode {
			remedy = fmt.Sprintf("put it in quotes: %q", v.node.Value)
		}
		v.problem(remedy, "a string is wanted here, this is %s", v.what())
		return
	}
	if strings.ContainsRune(v.node.Value, 0) {
		v.problem("leave it out", "a string cannot hold a NUL character")
		return
	}
	*into = v.node.Value
}

func (v value) strings(into *[]string) {
	for _, item := range v.list() {
		var s string
		item.string(&s)
		*into = append(*into, s)
	}
}

func (v value) stringMap(into *map[string]string) {
	*into = map[string]string{}
	for _, p := range v.pairs() {
		var s string
		p.val.string(&s)
		(*into)[p.name] = s
	}
}

func (v value) integer(into *int, low, high int) {
	n, err := strconv.Atoi(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!int" || err != nil {
		v.problem("write it without quotes", "a whole number is wanted here, this is %s", v.what())
		return
	}
	if n < low || n > high {
		v.problem("", "must be from %d to %d", low, high)
		return
	}
	*into = n
}

func (v value) port(into *uint16) {
	var n int
	v.integer(&n, 1, 65535)
	*into = uint16(n)
}

func (v value) duration(into *time.Duration) {
	d, err := time.ParseDuration(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || err != nil || d <= 0 {
		v.problem("write a number with its unit, as in 30s or 2m", "a duration is wanted here")
		return
	}
	*into = d
}

// oneOf reads a string that has to be one of a few.
func (v value) oneOf(into *string, allowed ...string) {
	var s string
	v.string(&s)
	for _, a := range allowed {
		if s == a {
			*into = s
			return
		}
	}
	if s != "" {
		v.problem("use one of "+strings.Join(allowed, ", "), "not known here")
	}
}
