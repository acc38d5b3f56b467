package envoyfilter

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
)

// merge merges src into dst. A single value in src replaces the value in dst. Items of lists are appended, and messages
// are merged. A message in a google.protobuf.Any field is merged if its type is the same in src and dst, and replaced
// otherwise. Wrapper types and durations count as single values.
func merge(dst, src proto.Message) { merger{}.mergeMessage(dst.ProtoReflect(), src.ProtoReflect()) }

// isMerge reports whether the operation of the patch is MERGE or MERGE_AND_REPLACE_LIST.
func (p *patch) isMerge() bool {
	return p.op == networking.EnvoyFilter_Patch_MERGE || p.op == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

// merge merges src into dst according to the operation of the patch. src is the value of the patch or a part of it.
func (p *patch) merge(dst, src proto.Message) {
	m := merger{replaceLists: p.op == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST}
	m.mergeMessage(dst.ProtoReflect(), src.ProtoReflect())
}

// merger merges messages. If replaceLists is set, a list of the source replaces the list of the destination, even in
// nested messages. Otherwise the items of the source are appended.
type merger struct {
	replaceLists bool
}

func (m merger) mergeMessage(dst, src protoreflect.Message) {
	src.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList():
			list := dst.Mutable(fd).List()
			if m.replaceLists {
				list.Truncate(0)
			}
			mergeList(list, v.List(), fd)
		case fd.IsMap():
			m.mergeMap(dst.Mutable(fd).Map(), v.Map(), fd)
		case fd.Message() == nil:
			dst.Set(fd, v)
		case !dst.Has(fd) || isWrapper(fd.Message()):
			dst.Set(fd, cloneValue(v))
		default:
			m.mergeValue(dst.Mutable(fd).Message(), v.Message())
		}
		return true
	})
}

func mergeList(dst, src protoreflect.List, fd protoreflect.FieldDescriptor) {
	for i := range src.Len() {
		item := src.Get(i)
		if fd.Message() != nil {
			item = cloneValue(item)
		}
		dst.Append(item)
	}
}

func (m merger) mergeMap(dst, src protoreflect.Map, fd protoreflect.FieldDescriptor) {
	src.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		switch {
		case fd.MapValue().Message() == nil:
			dst.Set(key, v)
		case !dst.Has(key) || isWrapper(fd.MapValue().Message()):
			dst.Set(key, cloneValue(v))
		default:
			m.mergeValue(dst.Mutable(key).Message(), v.Message())
		}
		return true
	})
}

func (m merger) mergeValue(dst, src protoreflect.Message) {
	to, ok := dst.Interface().(*anypb.Any)
	if !ok {
		m.mergeMessage(dst, src)
		return
	}
	from := src.Interface().(*anypb.Any)
	merged, err := m.mergeAny(to, from)
	if err != nil {
		merged = from
	}
	to.TypeUrl, to.Value = merged.GetTypeUrl(), merged.GetValue()
}

func (m merger) mergeAny(dst, src *anypb.Any) (*anypb.Any, error) {
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
	m.mergeMessage(to.ProtoReflect(), from.ProtoReflect())
	return packAny(to)
}

// packAny encodes a message into a google.protobuf.Any deterministically.
func packAny(m proto.Message) (*anypb.Any, error) {
	out := &anypb.Any{}
	err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true})
	return out, err
}

// isWrapper reports whether a message represents a single value. Such a message must be replaced, because a merge would
// ignore a zero value in the source.
func isWrapper(m protoreflect.MessageDescriptor) bool {
	switch m.FullName() {
	case "google.protobuf.Duration", "google.protobuf.Timestamp", "google.protobuf.BoolValue", "google.protobuf.StringValue",
		"google.protobuf.BytesValue", "google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.UInt32Value",
		"google.protobuf.UInt64Value", "google.protobuf.FloatValue", "google.protobuf.DoubleValue":
		return true
	}
	return false
}

func cloneValue(v protoreflect.Value) protoreflect.Value {
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}
