// Package protoyaml reads YAML strictly into protobuf messages, with errors that name line, field, value and remedy.
package protoyaml

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// Document is a message as its author wrote it: which fields are there matters, also where they are zero.
type Document map[string]any

// Section is the document below a field; nil when there is none.
func (d Document) Section(name string) Document {
	s, _ := d[name].(map[string]any)
	return s
}

// Unmarshal reads one YAML document into a message of Istio's API, by the rules of protojson, and refuses what the
// message has no place for. A duration may also be written as Go does (1m30s), as Istio has it. It gives the document,
// too; nil when it was empty.
func Unmarshal(text string, into proto.Message) (Document, error) {
	return unmarshal(text, into, nil)
}

// UnmarshalKnown is Unmarshal for what may have been written for a newer API: fields that the message does not have are
// left out, and told apart.
func UnmarshalKnown(text string, into proto.Message) (doc Document, unknown []error, err error) {
	doc, err = unmarshal(text, into, func(f *fault) { unknown = append(unknown, f.describe(text)) })
	return doc, unknown, err
}

func unmarshal(text string, into proto.Message, unknown func(*fault)) (Document, error) {
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, nil // empty, or comments alone
	}
	canonical(doc, into.ProtoReflect().Descriptor(), "", unknown)
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("a key is not a text: %w", err)
	}
	if err := protojson.Unmarshal(b, into); err != nil {
		if found := findFault(doc, into.ProtoReflect(), ""); found != nil {
			err = found.describe(text)
		}
		return nil, err
	}
	return doc, nil
}

// fieldOf is the field of a name, by either of its names; nil when there is none.
func fieldOf(m protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByJSONName(key); f != nil {
		return f
	}
	return m.Fields().ByTextName(key)
}

// canonical makes of a document what protojson reads: its durations are in seconds then, and where unknown is not nil, what
// the message has no place for is told and taken away.
func canonical(doc map[string]any, m protoreflect.MessageDescriptor, parent string, unknown func(*fault)) {
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		field := fieldOf(m, key)
		switch {
		case field == nil && unknown != nil:
			unknown(&fault{path: parent + key, key: key, known: fieldNames(m.Fields())})
			delete(doc, key)
		case field == nil || field.Message() == nil || field.IsMap():
		default:
			doc[key] = canonicalValue(doc[key], field.Message(), parent+key, unknown)
		}
	}
}

func canonicalValue(value any, m protoreflect.MessageDescriptor, path string, unknown func(*fault)) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = canonicalValue(v[i], m, fmt.Sprintf("%s[%d]", path, i), unknown)
		}
	case map[string]any:
		if m.ParentFile().Package() != "google.protobuf" { // the JSON of a Struct, say, is not made of its fields
			canonical(v, m, path+".", unknown)
		}
	case string:
		if d, err := time.ParseDuration(v); err == nil && m.FullName() == durationName {
			return inSeconds(d)
		}
	}
	return value
}

const durationName = "google.protobuf.Duration"

func inSeconds(d time.Duration) string {
	text := fmt.Sprintf("%d.%09ds", d.Abs()/time.Second, d.Abs()%time.Second)
	if d < 0 {
		return "-" + text
	}
	return text
}

// fault is the field that makes a document unreadable.
type fault struct {
	path, key string
	value     any
	field     protoreflect.FieldDescriptor // nil when there is no such field
	known     []string                     // the fields there are, in that case
}

// findFault looks for it field by field, since the decoder tells places in a JSON that nobody wrote.
func findFault(doc map[string]any, m protoreflect.Message, parent string) *fault {
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		f := &fault{path: parent + key, key: key, value: doc[key], field: fieldOf(m.Descriptor(), key)}
		if f.field == nil {
			f.known = fieldNames(m.Descriptor().Fields())
			return f
		}
		if reads(m, key, doc[key]) {
			continue
		}
		inner, nested := doc[key].(map[string]any)
		if nested && f.field.Message() != nil && !f.field.IsMap() && !f.field.IsList() {
			if deeper := findFault(inner, m.NewField(f.field).Message(), f.path+"."); deeper != nil {
				return deeper
			}
		}
		return f
	}
	return nil
}

func fieldNames(fields protoreflect.FieldDescriptors) []string {
	var names []string
	for i := range fields.Len() {
		names = append(names, fields.Get(i).JSONName())
	}
	return names
}

// reads says whether a message takes the value for one of its fields.
func reads(m protoreflect.Message, key string, value any) bool {
	b, err := json.Marshal(map[string]any{key: value})
	return err == nil && protojson.Unmarshal(b, m.New().Interface()) == nil
}

func (f *fault) describe(text string) error {
	place := ""
	if n := lineOf(f.key, text); n > 0 && strings.Contains(strings.TrimSpace(text), "\n") {
		place = fmt.Sprintf("line %d: ", n)
	}
	if f.field == nil {
		if meant := nearest.Name(f.key, f.known); meant != "" {
			return fmt.Errorf("%s%s: unknown field; did you mean %s?", place, f.path, meant)
		}
		return fmt.Errorf("%s%s: unknown field", place, f.path)
	}
	return fmt.Errorf("%s%s: %v: %s", place, f.path, f.value, f.wanted())
}

// wanted says what the field takes.
func (f *fault) wanted() string {
	if f.field.IsList() {
		return "write a list"
	}
	switch f.field.Kind() {
	case protoreflect.BoolKind:
		return "write true or false"
	case protoreflect.StringKind:
		return "write a text, in quotes"
	case protoreflect.EnumKind:
		return "write one of " + strings.Join(enumNames(f.field.Enum()), ", ")
	case protoreflect.MessageKind:
		return wantedMessage(f.field.Message())
	}
	return "write a number that fits"
}

func wantedMessage(m protoreflect.MessageDescriptor) string {
	switch m.FullName() {
	case durationName:
		return "write a duration, as 5s"
	case "google.protobuf.BoolValue":
		return "write true or false"
	case "google.protobuf.Int32Value", "google.protobuf.UInt32Value", "google.protobuf.Int64Value":
		return "write a whole number"
	}
	return "write an object with the fields of Istio's " + string(m.Name())
}

func enumNames(e protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range e.Values().Len() {
		names = append(names, string(e.Values().Get(i).Name()))
	}
	return names
}

// lineOf is the first line that has the key, or 0.
func lineOf(key, text string) int {
	n := 0
	for line := range strings.Lines(text) {
		n++
		before, _, found := strings.Cut(line, ":")
		if found && strings.Trim(before, " \t-{\"'") == key {
			return n
		}
	}
	return 0
}
