package compare

import (
	"github.com/cncf/xds/go/udpa/annotations"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// redacted is the placeholder for a sensitive value.
const redacted = "[hidden]"

// Redact replaces the values that Envoy's API marks as sensitive (private keys, passwords), and the pull secrets of
// Wasm modules. It also searches the messages in google.protobuf.Any fields, because a patch may contain a secret in
// any of them.
func Redact(m proto.Message) { redact(m.ProtoReflect()) }

// redact redacts a message and reports whether it redacted any value.
func redact(m protoreflect.Message) (changed bool) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		return redactPacked(packed)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if proto.GetExtension(fd.Options(), annotations.E_Sensitive).(bool) {
			redactField(m, fd)
			changed = true
			return true
		}
		switch {
		case fd.IsMap() && redactEntry(fd, v.Map()):
			changed = true
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				changed = redact(v.Message()) || changed
				return true
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				changed = redact(v.List().Get(i).Message()) || changed
			}
		default:
			changed = redact(v.Message()) || changed
		}
		return true
	})
	return changed
}

func redactPacked(packed *anypb.Any) bool {
	content, err := packed.UnmarshalNew()
	if err != nil || !redact(content.ProtoReflect()) {
		return false
	}
	return packed.MarshalFrom(content) == nil
}

// redactField replaces the value of a field by the placeholder. It clears the field if the field's type cannot contain
// the placeholder.
func redactField(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsList() || fd.IsMap():
		m.Clear(fd)
	case fd.Kind() == protoreflect.StringKind:
		m.Set(fd, protoreflect.ValueOfString(redacted))
	case fd.Message() != nil && fd.Message().FullName() == (&corev3.DataSource{}).ProtoReflect().Descriptor().FullName():
		source := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: redacted}}
		m.Set(fd, protoreflect.ValueOfMessage(source.ProtoReflect()))
	default:
		m.Clear(fd)
	}
}

// redactEntry redacts the pull secret in a map with the environment variables of a Wasm module. The map may also be
// part of a struct without a type. It reports whether the map contains a pull secret.
func redactEntry(fd protoreflect.FieldDescriptor, m protoreflect.Map) bool {
	if fd.MapKey().Kind() != protoreflect.StringKind {
		return false
	}
	key := protoreflect.ValueOfString(config.WasmPullSecret).MapKey()
	if !m.Has(key) {
		return false
	}
	switch m.Get(key).Interface().(type) {
	case string:
		m.Set(key, protoreflect.ValueOfString(redacted))
	default:
		m.Clear(key)
	}
	return true
}
