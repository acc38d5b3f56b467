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
	search.message(spec.ProtoReflect(), "spec")
	return search.field, search.value
}

type mention struct{ text, field, value string }

func (m *mention) message(msg protoreflect.Message, path string) {
	msg.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + fd.JSONName()
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				m.word(fmt.Sprintf("%s[%s]", at, k.String()), k.String())
				m.one(fd.MapValue(), v, fmt.Sprintf("%s[%s]", at, k.String()))
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				m.one(fd, v.List().Get(i), fmt.Sprintf("%s[%d]", at, i))
			}
		default:
			m.one(fd, v, at)
		}
		return true
	})
}

func (m *mention) one(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) {
	switch {
	case fd.Message() != nil:
		m.message(v.Message(), path)
	case fd.Kind() == protoreflect.StringKind:
		m.word(path, v.String())
	}
}

// word looks for one value. Of equal ones the first field by name counts, whatever order they are visited in.
func (m *mention) word(path, value string) {
	if len(value) < leastMentioned || !strings.Contains(m.text, value) {
		return
	}
	if len(value) > len(m.value) || len(value) == len(m.value) && path < m.field {
		m.field, m.value = path, value
	}
}
