package bootstrap

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Encode returns the bootstrap as the bytes that Envoy reads. They are deterministic.
//
// The result is equivalent to JSON(Build(c)), but Encode is much cheaper. The protobuf library prepares every reachable
// message type when it encodes the first message. For a bootstrap, these are most types of Envoy's API. That costs 10
// ms at start, and 2 MB of memory for the agent's lifetime. Encode uses the tags of the generated structs instead. It
// writes enumerations as numbers, because their names need the prepared types.
//
// With Override or Custom, Encode uses the protobuf library, because the result is merged as JSON and checked against
// the types.
func Encode(c Config) ([]byte, error) {
	if c.isCustomized() {
		t, _, err := customizedTree(c)
		if err != nil {
			return nil, err
		}
		return marshalIndented(t)
	}
	b, a, err := assemble(c)
	if err != nil {
		return nil, err
	}
	e := encoder{packed: a.messages}
	tree := e.message(reflect.ValueOf(b).Elem())
	if e.err != nil {
		return nil, e.err
	}
	return marshalIndented(tree)
}

// encoder converts generated messages to values for encoding/json, according to protobuf's JSON mapping.
type encoder struct {
	packed map[*anypb.Any]proto.Message
	err    error
}

func (e *encoder) message(m reflect.Value) map[string]any {
	fields := map[string]any{}
	for i := range m.NumField() {
		e.field(fields, m.Type().Field(i), m.Field(i))
	}
	return fields
}

func (e *encoder) field(fields map[string]any, f reflect.StructField, v reflect.Value) {
	if _, choice := f.Tag.Lookup("protobuf_oneof"); choice {
		if !v.IsNil() {
			one := v.Elem().Elem()
			fields[protoName(one.Type().Field(0))] = e.value(one.Field(0))
		}
		return
	}
	if name := protoName(f); name != "" && !isUnset(v) {
		fields[name] = e.value(v)
	}
}

// protoName returns the field's name in the proto file. It returns "" if the field is not a protobuf field.
func protoName(f reflect.StructField) string {
	for part := range strings.SplitSeq(f.Tag.Get("protobuf"), ",") {
		if name, ok := strings.CutPrefix(part, "name="); ok {
			return name
		}
	}
	return ""
}

// isUnset reports whether protobuf omits the field: it has no value, or the zero value of its type. A pointer to a zero
// value is not omitted.
func isUnset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

func (e *encoder) value(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		return e.pointer(v)
	case reflect.Slice:
		return e.list(v)
	case reflect.Map:
		entries := map[string]any{}
		for _, key := range v.MapKeys() {
			entries[fmt.Sprint(key.Interface())] = e.value(v.MapIndex(key))
		}
		return entries
	case reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Int32:
		return v.Int() // numbers, and enumerations
	}
	return v.Interface()
}

func (e *encoder) list(v reflect.Value) any {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return v.Bytes() // encoding/json writes base64, as protobuf does
	}
	list := make([]any, v.Len())
	for i := range list {
		list[i] = e.value(v.Index(i))
	}
	return list
}

// pointer converts a message or an optional scalar.
func (e *encoder) pointer(v reflect.Value) any {
	switch m := v.Interface().(type) {
	case *anypb.Any:
		return e.any(m)
	case *durationpb.Duration:
		return durationText(m)
	case *structpb.Struct:
		return m.AsMap()
	case *structpb.Value:
		return m.AsInterface()
	}
	if v.Elem().Kind() != reflect.Struct {
		return e.value(v.Elem())
	}
	if strings.HasSuffix(v.Type().Elem().PkgPath(), "/wrapperspb") {
		return e.value(v.Elem().FieldByName("Value"))
	}
	return e.message(v.Elem())
}

func (e *encoder) any(a *anypb.Any) any {
	m, ok := e.packed[a]
	if !ok {
		e.err = fmt.Errorf("bootstrap: encoding an Any field: the builder did not pack its message of type %s (error of the program)", a.GetTypeUrl())
		return nil
	}
	fields := e.message(reflect.ValueOf(m).Elem())
	fields["@type"] = a.GetTypeUrl()
	return fields
}

func durationText(d *durationpb.Duration) string {
	if d.GetNanos() == 0 {
		return fmt.Sprintf("%ds", d.GetSeconds())
	}
	return fmt.Sprintf("%d.%09ds", d.GetSeconds(), d.GetNanos())
}
