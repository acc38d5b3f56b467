package envoyfilter

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	// The value of a patch may contain a message of any type of Envoy's API, so all types must be registered.
	_ "github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter/types"
)

// typeMismatchError reports an invalid part of a patch's value. path is the path of this part within the value.
type typeMismatchError struct {
	path string
	why  string
}

func (m *typeMismatchError) Error() string { return m.path + ": " + m.why }

// readValue parses the value of a patch into a message. If the value is invalid, the error is a *typeMismatchError.
func readValue(value *structpb.Struct, into proto.Message) error {
	tree := convertDurations(expandTypedStructs(structpb.NewStructValue(value)), into.ProtoReflect().Descriptor())
	err := unmarshal(tree, into)
	if err == nil {
		return nil
	}
	path, err := findInvalid(tree, into.ProtoReflect().Type(), "", err)
	return &typeMismatchError{path, trimProtoError(err)}
}

func unmarshal(value *structpb.Value, into proto.Message) error {
	data, err := protojson.Marshal(value)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(data, into)
}

// trimProtoError returns the text of a protojson error without its position, because that position is not a position in
// the document.
func trimProtoError(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	text = strings.TrimPrefix(text, "syntax error ")
	if strings.HasPrefix(text, "(line ") {
		_, text, _ = strings.Cut(text, "): ")
	}
	if strings.Contains(text, "unable to resolve") {
		return "no extension of Envoy has this type"
	}
	return text
}

var typedStructs = map[string]bool{
	"type.googleapis.com/udpa.type.v1.TypedStruct": true,
	"type.googleapis.com/xds.type.v3.TypedStruct":  true,
}

// expandTypedStructs replaces each TypedStruct by a message of the type that it specifies. Such a message can be
// checked and merged.
func expandTypedStructs(v *structpb.Value) *structpb.Value {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_ListValue:
		out := &structpb.ListValue{}
		for _, item := range kind.ListValue.GetValues() {
			out.Values = append(out.Values, expandTypedStructs(item))
		}
		return structpb.NewListValue(out)
	case *structpb.Value_StructValue:
		fields := kind.StructValue.GetFields()
		if typedStructs[fields["@type"].GetStringValue()] {
			named := firstString(fields, "typeUrl", "type_url")
			inner := map[string]*structpb.Value{"@type": structpb.NewStringValue(named)}
			for name, value := range fields["value"].GetStructValue().GetFields() {
				inner[name] = value
			}
			fields = inner
		}
		out := map[string]*structpb.Value{}
		for name, value := range fields {
			out[name] = expandTypedStructs(value)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: out})
	}
	return v
}

func firstString(fields map[string]*structpb.Value, names ...string) string {
	for _, name := range names {
		if text := fields[name].GetStringValue(); text != "" {
			return text
		}
	}
	return ""
}

// findInvalid returns the path of the smallest invalid part of a value, and the error for this part.
func findInvalid(v *structpb.Value, mt protoreflect.MessageType, path string, err error) (string, error) {
	fields := v.GetStructValue().GetFields()
	if fields == nil {
		return path, err
	}
	if mt.Descriptor().FullName() == "google.protobuf.Any" {
		named := fields["@type"].GetStringValue()
		inner, resolveErr := protoregistry.GlobalTypes.FindMessageByURL(named)
		if resolveErr != nil {
			return path + ".@type", errors.New("unable to resolve")
		}
		rest := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for name, value := range fields {
			if name != "@type" {
				rest.Fields[name] = value
			}
		}
		return findInvalid(structpb.NewStructValue(rest), inner, path, err)
	}
	for _, name := range sortedNames(fields) {
		alone := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{name: fields[name]}})
		fieldErr := unmarshal(alone, mt.New().Interface())
		if fieldErr == nil {
			continue
		}
		at := path + "." + name
		fd := mt.Descriptor().Fields().ByJSONName(name)
		if fd == nil {
			fd = mt.Descriptor().Fields().ByTextName(name)
		}
		if fd == nil {
			return at, fmt.Errorf("%s has no such field", mt.Descriptor().Name())
		}
		return findInvalidItem(fields[name], fd, mt, at, fieldErr)
	}
	return path, err
}

func findInvalidItem(v *structpb.Value, fd protoreflect.FieldDescriptor, mt protoreflect.MessageType, path string, err error) (string, error) {
	kind := func(fd protoreflect.FieldDescriptor) protoreflect.MessageType {
		found, findErr := protoregistry.GlobalTypes.FindMessageByName(fd.Message().FullName())
		if findErr != nil {
			return mt
		}
		return found
	}
	read := func(item *structpb.Value, of protoreflect.MessageType) error {
		return unmarshal(item, of.New().Interface())
	}
	switch {
	case fd.IsMap() && fd.MapValue().Message() != nil:
		of := kind(fd.MapValue())
		for _, name := range sortedNames(v.GetStructValue().GetFields()) {
			item := v.GetStructValue().GetFields()[name]
			if itemErr := read(item, of); itemErr != nil {
				return findInvalid(item, of, path+"."+name, itemErr)
			}
		}
	case fd.IsMap() || fd.Message() == nil:
	case fd.IsList():
		of := kind(fd)
		for i, item := range v.GetListValue().GetValues() {
			if itemErr := read(item, of); itemErr != nil {
				return findInvalid(item, of, fmt.Sprintf("%s[%d]", path, i), itemErr)
			}
		}
	default:
		return findInvalid(v, kind(fd), path, err)
	}
	return path, err
}
