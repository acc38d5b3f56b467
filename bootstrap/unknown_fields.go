package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

const typeField = "@type"

func bootstrapDescriptor() protoreflect.MessageDescriptor {
	return (&bootstrapv3.Bootstrap{}).ProtoReflect().Descriptor()
}

// unknownFields collects a warning for each unknown field of a document.
type unknownFields []string

// canonical returns a copy of a document with Envoy's field names instead of camel case, and without unknown fields. It
// does not change messages of unknown types in Any fields.
func (u *unknownFields) canonical(t tree, m protoreflect.MessageDescriptor, path string) (tree, error) {
	result := make(tree, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		if key == typeField {
			result[key] = t[key]
			continue
		}
		field := m.Fields().ByTextName(key)
		if field == nil {
			field = m.Fields().ByJSONName(key)
		}
		if field == nil {
			*u = append(*u, describeUnknownField(path, key, m))
			continue
		}
		name := field.TextName()
		if _, twice := result[name]; twice {
			return nil, fmt.Errorf("%s: %s appears twice", path, name)
		}
		value, err := u.canonicalField(t[key], field, joinPath(path, key))
		if err != nil {
			return nil, err
		}
		result[name] = value
	}
	return result, nil
}

func describeUnknownField(path, key string, m protoreflect.MessageDescriptor) string {
	var known []string
	for i := range m.Fields().Len() {
		known = append(known, m.Fields().Get(i).TextName())
	}
	if meant := suggest.Name(key, known); meant != "" {
		return fmt.Sprintf("%s: unknown field; did you mean %s? The field has no effect", joinPath(path, key), meant)
	}
	return fmt.Sprintf("%s: unknown field; %s has no such field; the field has no effect", joinPath(path, key), m.FullName())
}

// joinPath appends the field name key to path. If path is only a file name, the separator is ": ", otherwise ".".
func joinPath(path, key string) string {
	if strings.Contains(path, ": ") {
		return path + "." + key
	}
	return path + ": " + key
}

func (u *unknownFields) canonicalField(value any, field protoreflect.FieldDescriptor, path string) (any, error) {
	m := field.Message()
	if field.IsMap() {
		m = field.MapValue().Message()
	}
	if m == nil || value == nil {
		return value, nil
	}
	switch v := value.(type) {
	case []any:
		list := make([]any, len(v))
		for i := range v {
			entry, err := u.canonicalMessage(v[i], m, fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, err
			}
			list[i] = entry
		}
		return list, nil
	case tree:
		if !field.IsMap() {
			return u.canonicalMessage(v, m, path)
		}
		entries := make(tree, len(v))
		for key := range v {
			entry, err := u.canonicalMessage(v[key], m, path+"["+key+"]")
			if err != nil {
				return nil, err
			}
			entries[key] = entry
		}
		return entries, nil
	}
	return value, nil
}

func (u *unknownFields) canonicalMessage(value any, m protoreflect.MessageDescriptor, path string) (any, error) {
	object, ok := value.(tree)
	if !ok {
		return value, nil
	}
	if m.FullName() == "google.protobuf.Any" {
		if m = packedDescriptor(object); m == nil {
			return object, nil
		}
	}
	if m.ParentFile().Package() == "google.protobuf" {
		return object, nil // in a type such as Struct, keys are not fields
	}
	return u.canonical(object, m, path)
}

// packedDescriptor returns the type of the message in an Any, or nil if this program does not contain the type.
func packedDescriptor(packed tree) protoreflect.MessageDescriptor {
	url, _ := packed[typeField].(string)
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		return nil
	}
	return t.Descriptor()
}

// validateResult decodes the result strictly and checks that the fields that the agent requires are unchanged. It does
// not validate values, because Envoy does that, and the generated validators would make the program a quarter larger.
func validateResult(result, own tree, author string) error {
	got, err := decode(result)
	if err != nil {
		if fault := findFault(result, bootstrapDescriptor(), author); fault != "" {
			return fmt.Errorf("%s: the value does not have the type of the field: %w", fault, err)
		}
		return fmt.Errorf("%s: the resulting bootstrap cannot be parsed: %w", author, err)
	}
	want, err := decode(own)
	if err != nil {
		return fmt.Errorf("bootstrap: parsing the encoded bootstrap: %w", err)
	}
	return checkProtected(got, want, author)
}

func decode(t tree) (*bootstrapv3.Bootstrap, error) {
	text, err := json.Marshal(opaque(t))
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{}
	return b, protojson.Unmarshal(text, b)
}

const structURL = "type.googleapis.com/google.protobuf.Struct"

// opaque replaces messages of unknown types in Any fields by a Struct, so that the rest of the document can be decoded.
func opaque(v any) any {
	switch v := v.(type) {
	case tree:
		if _, packed := v[typeField]; packed && packedDescriptor(v) == nil {
			return tree{typeField: structURL, "value": v}
		}
		hidden := make(tree, len(v))
		for key, value := range v {
			hidden[key] = opaque(value)
		}
		return hidden
	case []any:
		hidden := make([]any, len(v))
		for i, value := range v {
			hidden[i] = opaque(value)
		}
		return hidden
	}
	return v
}

// findFault returns the path and value of the most deeply nested field that cannot be decoded.
func findFault(t tree, m protoreflect.MessageDescriptor, path string) string {
	for _, key := range slices.Sorted(maps.Keys(t)) {
		field := m.Fields().ByTextName(key)
		if field == nil || isValidField(m, key, t[key]) {
			continue
		}
		here := joinPath(path, key)
		if inner := field.Message(); inner != nil && !field.IsMap() {
			entries, list := t[key].([]any)
			for i := range entries {
				if deeper := findNestedFault(entries[i], inner, fmt.Sprintf("%s[%d]", here, i)); deeper != "" {
					return deeper
				}
			}
			if deeper := findNestedFault(t[key], inner, here); !list && deeper != "" {
				return deeper
			}
		}
		value, _ := json.Marshal(t[key])
		return fmt.Sprintf("%s: %.100s", here, value)
	}
	return ""
}

func findNestedFault(value any, m protoreflect.MessageDescriptor, path string) string {
	object, ok := value.(tree)
	if ok && m.FullName() == "google.protobuf.Any" {
		m = packedDescriptor(object)
	}
	if !ok || m == nil {
		return ""
	}
	return findFault(object, m, path)
}

// isValidField reports whether the value is valid for a field of the message.
func isValidField(m protoreflect.MessageDescriptor, key string, value any) bool {
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		return true
	}
	text, err := json.Marshal(opaque(tree{key: value}))
	return err == nil && protojson.Unmarshal(text, t.New().Interface()) == nil
}
