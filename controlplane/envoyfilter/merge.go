package envoyfilter

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// merge puts what src has into dst: fields are replaced, lists are continued, messages are merged. A message within an Any
// is merged into one of the same type, and replaces one of another. What is one value in the configuration (a duration, a
// number that may be absent) is replaced as one.
func merge(dst, src proto.Message) { mergeMessage(dst.ProtoReflect(), src.ProtoReflect()) }

func mergeMessage(dst, src protoreflect.Message) {
	src.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList():
			mergeList(dst.Mutable(fd).List(), v.List(), fd)
		case fd.IsMap():
			mergeMap(dst.Mutable(fd).Map(), v.Map(), fd)
		case fd.Message() == nil:
			dst.Set(fd, v)
		case !dst.Has(fd) || single(fd.Message()):
			dst.Set(fd, cloned(v))
		default:
			mergeValue(dst.Mutable(fd).Message(), v.Message())
		}
		return true
	})
}

func mergeList(dst, src protoreflect.List, fd protoreflect.FieldDescriptor) {
	for i := range src.Len() {
		item := src.Get(i)
		if fd.Message() != nil {
			item = cloned(item)
		}
		dst.Append(item)
	}
}

func mergeMap(dst, src protoreflect.Map, fd protoreflect.FieldDescriptor) {
	src.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		switch {
		case fd.MapValue().Message() == nil:
			dst.Set(key, v)
		case !dst.Has(key) || single(fd.MapValue().Message()):
			dst.Set(key, cloned(v))
		default:
			mergeValue(dst.Mutable(key).Message(), v.Message())
		}
		return true
	})
}

func mergeValue(dst, src protoreflect.Message) {
	to, ok := dst.Interface().(*anypb.Any)
	if !ok {
		mergeMessage(dst, src)
		return
	}
	from := src.Interface().(*anypb.Any)
	merged, err := mergeAny(to, from)
	if err != nil {
		merged = from
	}
	to.TypeUrl, to.Value = merged.GetTypeUrl(), merged.GetValue()
}

func mergeAny(dst, src *anypb.Any) (*anypb.Any, error) {
	if dst.GetTypeUrl() != src.GetTypeUrl() {
		return src, nil
	}
	to, err := dst.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	from, err := src.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	merge(to, from)
	return packed(to)
}

// packed is the same bytes for the same message.
func packed(m proto.Message) (*anypb.Any, error) {
	out := &anypb.Any{}
	err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true})
	return out, err
}

// single says whether a message stands for one value. The zero value of one would else merge to nothing.
func single(m protoreflect.MessageDescriptor) bool {
	switch m.FullName() {
	case "google.protobuf.Duration", "google.protobuf.Timestamp", "google.protobuf.BoolValue", "google.protobuf.StringValue",
		"google.protobuf.BytesValue", "google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.UInt32Value",
		"google.protobuf.UInt64Value", "google.protobuf.FloatValue", "google.protobuf.DoubleValue":
		return true
	}
	return false
}

func cloned(v protoreflect.Value) protoreflect.Value {
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}
