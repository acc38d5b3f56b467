package config

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// leastMentioned is how long a value has to be for its being in a text to mean anything.
const leastMentioned = 3

// Mentioned finds the field of a document whose value a text quotes: the longest such value. The field is "" when there
// is none.
func (r *Resource) Mentioned(text string) (field, value string) {
	spec, ok := r.Spec.(proto.Message)
	if !ok {
		return "", ""
	}
	search := mention{text: text}
	search.message(spec.ProtoReflect(), &fieldPath{name: "spec"})
	return search.field, search.value
}

type mention struct{ text, field, value string }

// fieldPath is where a value stands. It is written out for the few that are mentioned.
type fieldPath struct {
	parent *fieldPath
	name   string // of a field, or of a key in a map
	index  int    // in a list
	kind   pathKind
}

type pathKind int

const (
	ofField pathKind = iota
	ofKey
	ofIndex
)

func (p *fieldPath) String() string {
	switch {
	case p.parent == nil:
		return p.name
	case p.kind == ofKey:
		return fmt.Sprintf("%s[%s]", p.parent, p.name)
	case p.kind == ofIndex:
		return fmt.Sprintf("%s[%d]", p.parent, p.index)
	}
	return p.parent.String() + "." + p.name
}

func (m *mention) message(msg protoreflect.Message, path *fieldPath) {
	msg.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := &fieldPath{parent: path, name: fd.JSONName()}
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entry := &fieldPath{parent: at, name: k.String(), kind: ofKey}
				m.word(entry, k.String())
				m.one(fd.MapValue(), v, entry)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				m.one(fd, v.List().Get(i), &fieldPath{parent: at, index: i, kind: ofIndex})
			}
		default:
			m.one(fd, v, at)
		}
		return true
	})
}

func (m *mention) one(fd protoreflect.FieldDescriptor, v protoreflect.Value, path *fieldPath) {
	switch {
	case fd.Message() != nil:
		m.message(v.Message(), path)
	case fd.Kind() == protoreflect.StringKind:
		m.word(path, v.String())
	}
}

// word looks for one value. Of equal ones the first field by name counts, whatever order they are visited in.
func (m *mention) word(path *fieldPath, value string) {
	if len(value) < leastMentioned || len(value) < len(m.value) || !strings.Contains(m.text, value) {
		return
	}
	if field := path.String(); len(value) > len(m.value) || field < m.field {
		m.field, m.value = field, value
	}
}
