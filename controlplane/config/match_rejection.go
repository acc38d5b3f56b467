package config

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// minQuotedLength is the minimum length of a value whose occurrence in a text is significant.
	minQuotedLength = 3
	// minFragmentLength is the minimum length of a quoted text whose occurrence in a value is significant.
	minFragmentLength = 12
	// maxFragments limits the number of quoted texts that are searched for.
	maxFragments = 10
)

// FieldQuotedIn returns the field of the document whose value occurs in text, an error message of Envoy, and the
// matching part of the value. A part in quotes suffices, because Envoy shortens scripts in its messages. If several
// fields match, FieldQuotedIn returns the one with the longest match. field is "" if no field matches.
func (r *Resource) FieldQuotedIn(text string) (field, value string) {
	spec, ok := r.Spec.(proto.Message)
	if !ok {
		return "", ""
	}
	search := quoteSearch{text: text, fragments: quotedFragments(text)}
	search.searchMessage(spec.ProtoReflect(), &fieldPath{name: "spec"})
	return search.field, search.value
}

// quotedFragments returns the first maxFragments parts of text in double quotes that have at least minFragmentLength
// bytes, without an ellipsis at the end.
func quotedFragments(text string) (fragments []string) {
	for _, rest, found := strings.Cut(text, `"`); found && len(fragments) < maxFragments; _, rest, found = strings.Cut(rest, `"`) {
		var quoted string
		if quoted, rest, found = strings.Cut(rest, `"`); !found {
			break
		}
		if quoted = strings.TrimSuffix(strings.TrimSuffix(quoted, "..."), "…"); len(quoted) >= minFragmentLength {
			fragments = append(fragments, quoted)
		}
	}
	return fragments
}

type quoteSearch struct {
	text         string
	fragments    []string
	field, value string
}

// findMatch returns value if the text contains it, and otherwise the longest fragment that value contains. It returns
// "" if nothing matches.
func (m *quoteSearch) findMatch(value string) (match string) {
	if len(value) < minQuotedLength {
		return ""
	}
	if strings.Contains(m.text, value) {
		return value
	}
	for _, f := range m.fragments {
		if len(f) > len(match) && strings.Contains(value, f) {
			match = f
		}
	}
	return match
}

// fieldPath is the path of a value, as a linked list. It is formatted only for values that match.
type fieldPath struct {
	parent *fieldPath
	name   string // field name, or key in a map
	index  int    // index in a list
	kind   pathKind
}

type pathKind int

const (
	fieldStep pathKind = iota
	keyStep
	indexStep
)

func (p *fieldPath) String() string {
	switch {
	case p.parent == nil:
		return p.name
	case p.kind == keyStep:
		return fmt.Sprintf("%s[%s]", p.parent, p.name)
	case p.kind == indexStep:
		return fmt.Sprintf("%s[%d]", p.parent, p.index)
	}
	return p.parent.String() + "." + p.name
}

func (m *quoteSearch) searchMessage(msg protoreflect.Message, path *fieldPath) {
	msg.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := &fieldPath{parent: path, name: fd.JSONName()}
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entry := &fieldPath{parent: at, name: k.String(), kind: keyStep}
				m.matchValue(entry, k.String())
				m.searchValue(fd.MapValue(), v, entry)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				m.searchValue(fd, v.List().Get(i), &fieldPath{parent: at, index: i, kind: indexStep})
			}
		default:
			m.searchValue(fd, v, at)
		}
		return true
	})
}

func (m *quoteSearch) searchValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, path *fieldPath) {
	switch {
	case fd.Message() != nil:
		m.searchMessage(v.Message(), path)
	case fd.Kind() == protoreflect.StringKind:
		m.matchValue(path, v.String())
	}
}

// matchValue records path if value is a longer match than the previous ones. Among equally long matches, the first path
// in alphabetical order is recorded, because maps are visited in random order.
func (m *quoteSearch) matchValue(path *fieldPath, value string) {
	match := m.findMatch(value)
	if match == "" || len(match) < len(m.value) {
		return
	}
	if field := path.String(); len(match) > len(m.value) || field < m.field {
		m.field, m.value = field, match
	}
}
