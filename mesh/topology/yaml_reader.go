package topology

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// maxDepth is the maximum nesting depth. It ends the parsing of an alias that contains itself.
const maxDepth = 64

// document parses a YAML document strictly. It records unexpected content as problems with positions and continues, so
// that the author sees all problems at once.
type document struct {
	file     string
	problems []config.Problem
}

// value is one node of a document, with its path.
type value struct {
	doc   *document
	node  *yaml.Node
	path  string
	depth int
}

func (v value) position() config.Position {
	return config.Position{File: v.doc.file, Line: v.node.Line, Column: v.node.Column}
}

// problem records a problem of the value, with a remedy.
func (v value) problem(remedy, format string, args ...any) {
	v.doc.problems = append(v.doc.problems, config.Problem{
		Severity: config.Error,
		At:       v.position(),
		Field:    v.path,
		Value:    v.text(),
		Message:  fmt.Sprintf(format, args...),
		Remedy:   remedy,
	})
}

// text returns a scalar's text as written, truncated for messages.
func (v value) text() string {
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

// isNull reports whether the field is empty. An empty field counts as missing.
func (v value) isNull() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!null" }

// kindName returns the YAML type of the value for messages.
func (v value) kindName() string {
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

// hasProblems reports whether a problem was recorded for one of the mapping's fields. The value of this field is then
// unreliable.
func (v value) hasProblems(field string) bool {
	path := v.join(field)
	return slices.ContainsFunc(v.doc.problems, func(p config.Problem) bool {
		rest, within := strings.CutPrefix(p.Field, path)
		return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// pair is one field of a mapping. key is the node with the field's name.
type pair struct {
	name string
	key  value
	val  value
}

func (v value) pairs() []pair {
	if v.isNull() {
		return nil
	}
	if v.node.Kind != yaml.MappingNode {
		v.problem("write `field: value` lines here", "a mapping is expected here, but this is %s", v.kindName())
		return nil
	}
	if v.depth > maxDepth {
		v.problem("use fewer levels of lists and mappings", "the nesting is deeper than %d levels", maxDepth)
		return nil
	}
	seen := map[string]bool{}
	var out []pair
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		name := v.node.Content[i].Value
		p := pair{name, v.child(v.node.Content[i], v.join(name)), v.child(v.node.Content[i+1], v.join(name))}
		if seen[name] {
			p.key.problem("remove one of the two lines", "the field is set twice")
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

// object reads a mapping with known fields. It returns the names of the fields that are present.
func (v value) object(fields map[string]func(value)) map[string]bool {
	present := map[string]bool{}
	for _, p := range v.pairs() {
		read, ok := fields[p.name]
		if !ok {
			p.key.problem(fieldRemedy(p.name, fields), "unknown field")
			continue
		}
		if !p.val.isNull() {
			present[p.name] = true
			read(p.val)
		}
	}
	return present
}

// lookup returns the field called name of a mapping that was already read. ok is false if the field is missing or
// empty. If it is missing, lookup returns v.
func (v value) lookup(name string) (field value, ok bool) {
	for i := 0; v.node.Kind == yaml.MappingNode && i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == name {
			field = v.child(v.node.Content[i+1], v.join(name))
			return field, !field.isNull()
		}
	}
	return v, false
}

// field returns a mapping's field, so that a problem has its position. If the field is missing, it returns the mapping.
func (v value) field(name string) value {
	field, _ := v.lookup(name)
	return field
}

// items returns the items of the list stored under field.
func (v value) items(field string) []value {
	if list, ok := v.lookup(field); ok {
		return list.list()
	}
	return nil
}

// entries returns the key/value pairs of the mapping stored under field.
func (v value) entries(field string) []pair {
	if mapping, ok := v.lookup(field); ok {
		return mapping.pairs()
	}
	return nil
}

// fieldRemedy suggests the field name that the author probably meant, or lists the known names.
func fieldRemedy(name string, fields map[string]func(value)) string {
	known := make([]string, 0, len(fields))
	for f := range fields {
		known = append(known, f)
	}
	sort.Strings(known)
	if near := suggest.Name(name, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "the valid fields are " + strings.Join(known, ", ")
}

func (v value) list() []value {
	if v.isNull() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.problem("put `- ` before each item", "a list is expected here, but this is %s", v.kindName())
		return nil
	}
	if v.depth > maxDepth {
		v.problem("use fewer levels of lists and mappings", "the nesting is deeper than %d levels", maxDepth)
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
			remedy = fmt.Sprintf("put the value in quotes: %q", v.node.Value)
		}
		v.problem(remedy, "a string is expected here, but this is %s", v.kindName())
		return
	}
	if strings.ContainsRune(v.node.Value, 0) {
		v.problem("remove the character", "a string cannot contain a NUL character")
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
		v.problem("write the number without quotes", "a whole number is expected here, but this is %s", v.kindName())
		return
	}
	if n < low || n > high {
		v.problem("write a number in this range", "the number is not between %d and %d", low, high)
		return
	}
	*into = n
}

func (v value) boolean(into *bool) {
	b, err := strconv.ParseBool(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!bool" || err != nil {
		v.problem("write true or false, without quotes", "true or false is expected here, but this is %s", v.kindName())
		return
	}
	*into = b
}

func (v value) port(into *uint16) {
	var n int
	v.integer(&n, 1, 65535)
	*into = uint16(n)
}

func (v value) duration(into *time.Duration) {
	d, err := time.ParseDuration(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || err != nil || d <= 0 {
		v.problem("write a number with its unit, as in 30s or 2m", "a duration is expected here")
		return
	}
	*into = d
}

// oneOf reads a string that must be one of the allowed values.
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
		v.problem("use one of "+strings.Join(allowed, ", "), "not a valid value")
	}
}
