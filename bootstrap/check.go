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

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

const typeField = "@type"

func bootstrapDescriptor() protoreflect.MessageDescriptor {
	return (&bootstrapv3.Bootstrap{}).ProtoReflect().Descriptor()
}

// canonical renames the fields of a document to Envoy's own names, which may also be written in camel case, and refuses
// what Envoy's message has no place for. What is packed in a type that this program does not know stays as it is.
func canonical(t tree, m protoreflect.MessageDescriptor, path string) (tree, error) {
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
			return nil, unknownField(path, key, m)
		}
		name := field.TextName()
		if _, twice := result[name]; twice {
			return nil, fmt.Errorf("%s: %s is there twice", path, name)
		}
		value, err := canonicalField(t[key], field, within(path, key))
		if err != nil {
			return nil, err
		}
		result[name] = value
	}
	return result, nil
}

func unknownField(path, key string, m protoreflect.MessageDescriptor) error {
	var known []string
	for i := range m.Fields().Len() {
		known = append(known, m.Fields().Get(i).TextName())
	}
	if meant := nearest.Name(key, known); meant != "" {
		return fmt.Errorf("%s: unknown field; did you mean %s?", within(path, key), meant)
	}
	return fmt.Errorf("%s: unknown field; it is not one of %s", within(path, key), m.FullName())
}

// within is the path of a field: the first one follows the name of the file.
func within(path, key string) string {
	if strings.Contains(path, ": ") {
		return path + "." + key
	}
	return path + ": " + key
}

func canonicalField(value any, field protoreflect.FieldDescriptor, path string) (any, error) {
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
			entry, err := canonicalMessage(v[i], m, fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, err
			}
			list[i] = entry
		}
		return list, nil
	case tree:
		if !field.IsMap() {
			return canonicalMessage(v, m, path)
		}
		entries := make(tree, len(v))
		for key := range v {
			entry, err := canonicalMessage(v[key], m, path+"["+key+"]")
			if err != nil {
				return nil, err
			}
			entries[key] = entry
		}
		return entries, nil
	}
	return value, nil
}

func canonicalMessage(value any, m protoreflect.MessageDescriptor, path string) (any, error) {
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
		return object, nil // Struct and the like, whose keys are not fields
	}
	return canonical(object, m, path)
}

// packedDescriptor is the type of a packed message; nil where this program does not know it.
func packedDescriptor(packed tree) protoreflect.MessageDescriptor {
	url, _ := packed[typeField].(string)
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		return nil
	}
	return t.Descriptor()
}

// check decodes the result as strictly as can be, and sees that what the agent lives by is as it was. Whether Envoy's own
// rules are kept is for Envoy to say: the validators that are generated from them would add a quarter to the program.
func check(result, own tree, author string) error {
	got, err := decode(result)
	if err != nil {
		if fault := faultIn(result, bootstrapDescriptor(), author); fault != "" {
			return fmt.Errorf("%s: it does not fit there: %w", fault, err)
		}
		return fmt.Errorf("%s: the bootstrap that comes of it cannot be read: %w", author, err)
	}
	want, err := decode(own)
	if err != nil {
		return fmt.Errorf("bootstrap: reading what was written: %w", err)
	}
	return protected(got, want, author)
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

// opaque hides what is packed in types that this program does not know, so that the rest can be decoded.
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

// faultIn is the path of the deepest field that cannot be decoded, with its value.
func faultIn(t tree, m protoreflect.MessageDescriptor, path string) string {
	for _, key := range slices.Sorted(maps.Keys(t)) {
		field := m.Fields().ByTextName(key)
		if field == nil || readable(m, key, t[key]) {
			continue
		}
		here := within(path, key)
		if inner := field.Message(); inner != nil && !field.IsMap() {
			entries, list := t[key].([]any)
			for i := range entries {
				if deeper := faultBelow(entries[i], inner, fmt.Sprintf("%s[%d]", here, i)); deeper != "" {
					return deeper
				}
			}
			if deeper := faultBelow(t[key], inner, here); !list && deeper != "" {
				return deeper
			}
		}
		value, _ := json.Marshal(t[key])
		return fmt.Sprintf("%s: %.100s", here, value)
	}
	return ""
}

func faultBelow(value any, m protoreflect.MessageDescriptor, path string) string {
	object, ok := value.(tree)
	if ok && m.FullName() == "google.protobuf.Any" {
		m = packedDescriptor(object)
	}
	if !ok || m == nil {
		return ""
	}
	return faultIn(object, m, path)
}

// readable says whether a message takes the value for one of its fields.
func readable(m protoreflect.MessageDescriptor, key string, value any) bool {
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		return true
	}
	text, err := json.Marshal(opaque(tree{key: value}))
	return err == nil && protojson.Unmarshal(text, t.New().Interface()) == nil
}
