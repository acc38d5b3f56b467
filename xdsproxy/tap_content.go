package xdsproxy

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"sync"

	udpa "github.com/cncf/xds/go/udpa/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	redacted = "[redacted]"
	// maxDepth is the maximum nesting depth of a displayed message. The content of deeper messages is removed.
	maxDepth = 100
	// maxOpaque is the maximum size in bytes of a displayed resource of an unknown type.
	maxOpaque = 64 << 10
)

// secretTypes matches the names of those unknown message types that probably contain secrets.
var secretTypes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)auth|credential|secret|token|password|api_?key|hmac|session|cookie|inject|signing`)
})

// opaqueContent is displayed instead of a message that is too large or whose type is unknown.
type opaqueContent struct {
	Type   string `json:"@type"`
	Size   int    `json:"size"`
	Base64 string `json:"base64,omitempty"`
	Note   string `json:"note,omitempty"`
}

func newOpaqueContent(typeURL string, data []byte, size int) opaqueContent {
	o := opaqueContent{Type: typeURL, Size: size}
	switch {
	case data == nil || len(data) > maxOpaque:
		o.Note = "too large to display"
	case secretTypes().MatchString(typeURL) || lastgood.HasSecret(typeURL, data) || redact.Text(string(data)) != string(data):
		o.Note = "not displayed: it may contain a secret"
	default:
		o.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	return o
}

func opaqueJSON(typeURL string, data []byte, size int) json.RawMessage {
	text, err := json.Marshal(newOpaqueContent(typeURL, data, size))
	if err != nil { // impossible for strings and numbers
		return nil
	}
	return text
}

// redactedJSON returns the content of an Any as JSON. It redacts the fields that Envoy's API marks as sensitive.
func redactedJSON(body *anypb.Any) ([]byte, error) {
	m, err := body.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	c := redactor{}
	c.message(m.ProtoReflect(), false, 0)
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

// redactor replaces the sensitive values of a message by a placeholder, and messages of unknown type by an
// opaqueContent.
type redactor struct{}

// visibleFields are those fields of sensitive messages that identify the secret but do not contain it.
var visibleFields = map[protoreflect.Name]bool{"filename": true, "path": true, "name": true, "provider_name": true, "environment_variable": true}

func (c redactor) message(m protoreflect.Message, secret bool, depth int) {
	if depth > maxDepth {
		m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool { m.Clear(fd); return true })
		return
	}
	if body, ok := m.Interface().(*anypb.Any); ok {
		c.any(body, secret, depth)
		return
	}
	m.SetUnknown(nil)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		c.field(m, fd, v, secret || isSensitive(fd), depth)
		return true
	})
}

func (c redactor) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, v protoreflect.Value, secret bool, depth int) {
	switch {
	case fd.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, one protoreflect.Value) bool {
			if w, ok := c.value(fd.MapValue(), one, secret, depth); ok {
				v.Map().Set(k, w)
			}
			return true
		})
	case fd.IsList():
		for i := range v.List().Len() {
			if w, ok := c.value(fd, v.List().Get(i), secret, depth); ok {
				v.List().Set(i, w)
			}
		}
	default:
		if w, ok := c.value(fd, v, secret, depth); ok {
			m.Set(fd, w)
		}
	}
}

// value redacts one value. For a sensitive string or sensitive bytes, it returns the replacement and true. A message is
// redacted in place, and value returns false.
func (c redactor) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, secret bool, depth int) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c.message(v.Message(), secret, depth+1)
	case protoreflect.StringKind:
		if secret && !visibleFields[fd.Name()] {
			return protoreflect.ValueOfString(redacted), true
		}
	case protoreflect.BytesKind:
		if secret || redact.Text(string(v.Bytes())) != string(v.Bytes()) {
			return protoreflect.ValueOfBytes([]byte(redacted)), true
		}
	}
	return protoreflect.Value{}, false
}

// any redacts the content of an Any. It replaces a message of unknown type by an opaqueContent.
func (c redactor) any(body *anypb.Any, secret bool, depth int) {
	m, err := body.UnmarshalNew()
	if err == nil {
		c.message(m.ProtoReflect(), secret, depth+1)
		var cleaned []byte
		if cleaned, err = (proto.MarshalOptions{AllowPartial: true}).Marshal(m); err == nil {
			body.Value = cleaned
			return
		}
	}
	value := body.Value
	if secret {
		value = nil
	}
	o := newOpaqueContent(body.TypeUrl, value, len(body.Value))
	described, err := structpb.NewStruct(map[string]any{"type": o.Type, "size": o.Size, "base64": o.Base64, "note": o.Note})
	if err == nil {
		err = body.MarshalFrom(described)
	}
	if err != nil {
		body.Reset()
	}
}

// isSensitive reports whether Envoy's API marks the field as sensitive.
func isSensitive(fd protoreflect.FieldDescriptor) bool {
	options := fd.Options()
	if options == nil || !proto.HasExtension(options, udpa.E_Sensitive) {
		return false
	}
	sensitive, _ := proto.GetExtension(options, udpa.E_Sensitive).(bool)
	return sensitive
}
