package envoyfilter

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"
)

// convertDurations converts durations in Go's form, for example "500ms" or "1m30s", to the form of protobuf's JSON
// mapping ("0.500s", "90s"). Istio accepts both forms. md is the type of v. Other values, and parts whose type is
// unknown, are not changed.
func convertDurations(v *structpb.Value, md protoreflect.MessageDescriptor) *structpb.Value {
	if md.FullName() == "google.protobuf.Duration" {
		return convertDuration(v)
	}
	fields := v.GetStructValue().GetFields()
	if fields == nil {
		return v
	}
	if md.FullName() == "google.protobuf.Any" {
		inner, err := protoregistry.GlobalTypes.FindMessageByURL(fields["@type"].GetStringValue())
		if err != nil {
			return v
		}
		md = inner.Descriptor()
		if md.FullName() == "google.protobuf.Duration" {
			return convertFields(fields, func(name string, value *structpb.Value) *structpb.Value {
				if name == "value" {
					return convertDuration(value)
				}
				return value
			})
		}
	}
	return convertFields(fields, func(name string, value *structpb.Value) *structpb.Value {
		fd := md.Fields().ByJSONName(name)
		if fd == nil {
			fd = md.Fields().ByTextName(name)
		}
		if fd == nil {
			return value
		}
		return convertFieldDurations(value, fd)
	})
}

func convertFields(fields map[string]*structpb.Value, convert func(name string, value *structpb.Value) *structpb.Value) *structpb.Value {
	out := make(map[string]*structpb.Value, len(fields))
	for name, value := range fields {
		out[name] = convert(name, value)
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: out})
}

// convertFieldDurations calls convertDurations for the message in a field, or for each message of a list or map.
func convertFieldDurations(v *structpb.Value, fd protoreflect.FieldDescriptor) *structpb.Value {
	switch {
	case fd.IsMap():
		entries := v.GetStructValue().GetFields()
		if fd.MapValue().Message() == nil || entries == nil {
			return v
		}
		return convertFields(entries, func(_ string, item *structpb.Value) *structpb.Value {
			return convertDurations(item, fd.MapValue().Message())
		})
	case fd.Message() == nil:
		return v
	case fd.IsList():
		items := v.GetListValue()
		if items == nil {
			return v
		}
		out := &structpb.ListValue{}
		for _, item := range items.GetValues() {
			out.Values = append(out.Values, convertDurations(item, fd.Message()))
		}
		return structpb.NewListValue(out)
	}
	return convertDurations(v, fd.Message())
}

func convertDuration(v *structpb.Value) *structpb.Value {
	d, err := time.ParseDuration(v.GetStringValue())
	if err != nil {
		return v
	}
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	text := sign + strconv.FormatInt(int64(d/time.Second), 10)
	if fraction := d % time.Second; fraction > 0 {
		digits := strconv.FormatInt(int64(time.Second+fraction), 10)[1:]
		text += "." + strings.TrimRight(digits, "0")
	}
	return structpb.NewStringValue(text + "s")
}
