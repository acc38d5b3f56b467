package compare

import (
	"github.com/cncf/xds/go/udpa/annotations"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// hidden is what is shown of a value that nobody may see.
const hidden = "[hidden]"

// Hide replaces what Envoy's API marks as sensitive (private keys, passwords), and what the agent is to pull modules with,
// wherever in a message it is, within what is packed too: patches may put such anywhere.
func Hide(m proto.Message) { hide(m.ProtoReflect()) }

// hide says whether it replaced anything.
func hide(m protoreflect.Message) (changed bool) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		return hidePacked(packed)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if proto.GetExtension(fd.Options(), annotations.E_Sensitive).(bool) {
			hideField(m, fd)
			changed = true
			return true
		}
		switch {
		case fd.IsMap() && hideEntry(fd, v.Map()):
			changed = true
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				changed = hide(v.Message()) || changed
				return true
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				changed = hide(v.List().Get(i).Message()) || changed
			}
		default:
			changed = hide(v.Message()) || changed
		}
		return true
	})
	return changed
}

func hidePacked(packed *anypb.Any) bool {
	content, err := packed.UnmarshalNew()
	if err != nil || !hide(content.ProtoReflect()) {
		return false
	}
	return packed.MarshalFrom(content) == nil
}

// hideField says that there is something, where that can be said.
func hideField(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsList() || fd.IsMap():
		m.Clear(fd)
	case fd.Kind() == protoreflect.StringKind:
		m.Set(fd, protoreflect.ValueOfString(hidden))
	case fd.Message() != nil && fd.Message().FullName() == (&corev3.DataSource{}).ProtoReflect().Descriptor().FullName():
		source := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: hidden}}
		m.Set(fd, protoreflect.ValueOfMessage(source.ProtoReflect()))
	default:
		m.Clear(fd)
	}
}

// hideEntry hides the pull secret in the environment of a module, also in one that is not typed, and says whether there is one.
func hideEntry(fd protoreflect.FieldDescriptor, m protoreflect.Map) bool {
	if fd.MapKey().Kind() != protoreflect.StringKind {
		return false
	}
	key := protoreflect.ValueOfString(config.WasmPullSecret).MapKey()
	if !m.Has(key) {
		return false
	}
	switch m.Get(key).Interface().(type) {
	case string:
		m.Set(key, protoreflect.ValueOfString(hidden))
	default:
		m.Clear(key)
	}
	return true
}
