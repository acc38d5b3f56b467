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
	hidden = "[redacted]"
	// deepest bounds the nesting of what is decoded.
	deepest = 100
	// mostOpaque bounds what is shown of content that nobody here can read.
	mostOpaque = 64 << 10
)

// secretTypes are names of types that are likely to hold secrets, where nobody here knows in which of their fields.
var secretTypes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)auth|credential|secret|token|password|api_?key|hmac|session|cookie|inject|signing`)
})

// opaque is what stands for content of a type that this program does not know.
type opaque struct {
	Type   string `json:"@type"`
	Size   int    `json:"size"`
	Base64 string `json:"base64,omitempty"`
	Note   string `json:"note,omitempty"`
}

func opaqueOf(typeURL string, data []byte, size int) opaque {
	o := opaque{Type: typeURL, Size: size}
	switch {
	case data == nil || len(data) > mostOpaque:
		o.Note = "too large to be shown"
	case secretTypes().MatchString(typeURL) || lastgood.HasSecret(typeURL, data) || redact.Text(string(data)) != string(data):
		o.Note = "not shown: there may be a secret in it"
	default:
		o.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	return o
}

func opaqueJSON(typeURL string, data []byte, size int) json.RawMessage {
	text, err := json.Marshal(opaqueOf(typeURL, data, size))
	if err != nil { // strings and numbers
		return nil
	}
	return text
}

// readable is the content of an Any as JSON, with everything that Envoy's API marks as sensitive left out.
func readable(body *anypb.Any) ([]byte, error) {
	m, err := body.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	c := cleaner{}
	c.message(m.ProtoReflect(), false, 0)
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

// cleaner makes a message fit to be shown: what is sensitive is replaced, and what is of an unknown type is described.
type cleaner struct{}

// visible are texts within something sensitive that say where it is, not what it is.
var visible = map[protoreflect.Name]bool{"filename": true, "path": true, "name": true, "provider_name": true, "environment_variable": true}

func (c cleaner) message(m protoreflect.Message, secret bool, depth int) {
	if depth > deepest {
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

func (c cleaner) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, v protoreflect.Value, secret bool, depth int) {
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

// value gives what is to stand for a value, if that is something else. Messages are changed in place.
func (c cleaner) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, secret bool, depth int) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c.message(v.Message(), secret, depth+1)
	case protoreflect.StringKind:
		if secret && !visible[fd.Name()] {
			return protoreflect.ValueOfString(hidden), true
		}
	case protoreflect.BytesKind:
		if secret || redact.Text(string(v.Bytes())) != string(v.Bytes()) {
			return protoreflect.ValueOfBytes([]byte(hidden)), true
		}
	}
	return protoreflect.Value{}, false
}

// any cleans what an Any holds. What is of no known type gives way to a description of itself.
func (c cleaner) any(body *anypb.Any, secret bool, depth int) {
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
	o := opaqueOf(body.TypeUrl, value, len(body.Value))
	described, err := structpb.NewStruct(map[string]any{"type": o.Type, "size": o.Size, "base64": o.Base64, "note": o.Note})
	if err == nil {
		err = body.MarshalFrom(described)
	}
	if err != nil {
		body.Reset()
	}
}

func isSensitive(fd protoreflect.FieldDescriptor) bool {
	options := fd.Options()
	if options == nil || !proto.HasExtension(options, udpa.E_Sensitive) {
		return false
	}
	sensitive, _ := proto.GetExtension(options, udpa.E_Sensitive).(bool)
	return sensitive
}
