// Package protoyaml decodes YAML strictly into protobuf messages. An error contains the line, the field, the value and
// a remedy.
package protoyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// Document is a decoded YAML object. Unlike the protobuf message, it shows which fields the author wrote, even those
// with zero values.
type Document map[string]any

// Section returns the object that is stored under name. It returns nil if the value is missing or not an object.
func (d Document) Section(name string) Document {
	s, _ := d[name].(map[string]any)
	return s
}

// Unmarshal decodes one YAML document into a message of Istio's API by the rules of protojson. It returns an error for
// unknown fields. As in Istio, a duration may also have Go's format (1m30s). The returned document is nil for an empty
// text.
func Unmarshal(text string, into proto.Message) (Document, error) {
	return unmarshal(text, into, nil)
}

// UnmarshalKnown is like Unmarshal, for documents that may use a newer API. It skips unknown fields, and returns an
// error in unknown for each of them.
func UnmarshalKnown(text string, into proto.Message) (doc Document, unknown []error, err error) {
	doc, err = unmarshal(text, into, func(f *fault) { unknown = append(unknown, f.describe(text)) })
	return doc, unknown, err
}

func unmarshal(text string, into proto.Message, unknown func(*fault)) (Document, error) {
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, describeYAMLError(err)
	}
	if doc == nil {
		return nil, nil // empty, or only comments
	}
	canonicalize(doc, into.ProtoReflect().Descriptor(), "", unknown)
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("a key is not a string: %w", err)
	}
	if err := protojson.Unmarshal(b, into); err != nil {
		if found := findFault(doc, into.ProtoReflect(), ""); found != nil {
			err = found.describe(text)
		}
		return nil, err
	}
	return doc, nil
}

// describeYAMLError replaces the error for a document that is not a mapping, because the error names a Go type. Other
// errors are returned unchanged.
func describeYAMLError(err error) error {
	if strings.Contains(err.Error(), "into map[string]interface {}") {
		return errors.New("the content is not a YAML mapping: write fields in the form name: value")
	}
	return err
}

// fieldOf returns the field of m whose JSON or proto name is key, or nil.
func fieldOf(m protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByJSONName(key); f != nil {
		return f
	}
	return m.Fields().ByTextName(key)
}

// canonicalize converts doc to the form that protojson accepts, with durations in seconds. If unknown is not nil,
// canonicalize removes each unknown field and calls unknown with it.
func canonicalize(doc map[string]any, m protoreflect.MessageDescriptor, parent string, unknown func(*fault)) {
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		field := fieldOf(m, key)
		switch {
		case field == nil && unknown != nil:
			unknown(&fault{path: parent + key, key: key, known: fieldNames(m.Fields())})
			delete(doc, key)
		case field == nil || field.Message() == nil || field.IsMap():
		default:
			doc[key] = canonicalizeValue(doc[key], field.Message(), parent+key, unknown)
		}
	}
}

func canonicalizeValue(value any, m protoreflect.MessageDescriptor, path string, unknown func(*fault)) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = canonicalizeValue(v[i], m, fmt.Sprintf("%s[%d]", path, i), unknown)
		}
	case map[string]any:
		// The JSON form of google.protobuf.Struct, for example, does not consist of the fields of that message.
		if m.ParentFile().Package() != "google.protobuf" {
			canonicalize(v, m, path+".", unknown)
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

// fault is the field that makes a document invalid.
type fault struct {
	path, key string
	value     any
	field     protoreflect.FieldDescriptor // nil for an unknown field
	known     []string                     // the message's fields, if field is nil
}

// findFault returns the invalid field. It decodes the document field by field, because the positions in the decoder's
// errors refer to the generated JSON.
func findFault(doc map[string]any, m protoreflect.Message, parent string) *fault {
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		f := &fault{path: parent + key, key: key, value: doc[key], field: fieldOf(m.Descriptor(), key)}
		if f.field == nil {
			f.known = fieldNames(m.Descriptor().Fields())
			return f
		}
		if accepts(m, key, doc[key]) {
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

// accepts reports whether the field key of m accepts value.
func accepts(m protoreflect.Message, key string, value any) bool {
	b, err := json.Marshal(map[string]any{key: value})
	return err == nil && protojson.Unmarshal(b, m.New().Interface()) == nil
}

func (f *fault) describe(text string) error {
	place := ""
	if n := lineOf(f.key, text); n > 0 && strings.Contains(strings.TrimSpace(text), "\n") {
		place = fmt.Sprintf("line %d: ", n)
	}
	if f.field == nil {
		if meant := suggest.Name(f.key, f.known); meant != "" {
			return fmt.Errorf("%s%s: unknown field; did you mean %s?", place, f.path, meant)
		}
		return fmt.Errorf("%s%s: unknown field", place, f.path)
	}
	return fmt.Errorf("%s%s: %v: %s", place, f.path, f.value, f.wanted())
}

// wanted returns a remedy that describes the values that the field accepts.
func (f *fault) wanted() string {
	if f.field.IsList() {
		return "write a list"
	}
	switch f.field.Kind() {
	case protoreflect.BoolKind:
		return "write true or false"
	case protoreflect.StringKind:
		return "write a string in quotes"
	case protoreflect.EnumKind:
		return "write one of " + strings.Join(enumNames(f.field.Enum()), ", ")
	case protoreflect.MessageKind:
		return wantedMessage(f.field.Message())
	}
	return "write a number within the field's range"
}

func wantedMessage(m protoreflect.MessageDescriptor) string {
	switch m.FullName() {
	case durationName:
		return "write a duration such as 5s"
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

// lineOf returns the number of the first line whose YAML key is key. It returns 0 if there is none.
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
