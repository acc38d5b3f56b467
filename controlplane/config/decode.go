package config

import (
	"fmt"
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// readSpec reads the spec of one of Istio's kinds, strictly: into the API's own types, with all that is wrong with it
// told at its place, and with a warning for what has no effect here.
//
// The nodes are walked by the message's descriptor rather than handed to protojson as JSON, which would stop at the first
// error and know no lines. A test holds the two against one another.
func (d *document) readSpec(n *yaml.Node, info kindInfo) proto.Message {
	m := info.message.New()
	if n == nil || isNull(n) {
		// An empty spec means something for some kinds: a PeerAuthentication that leaves all to its parent, a policy that
		// denies all.
		n = &yaml.Node{Kind: yaml.MappingNode, Line: d.origin.Line - d.offset, Column: d.origin.Column}
	}
	w := walk{document: d}
	w.message(n, m, "spec")
	if !d.refused {
		info.validate(scope{d, "spec"}, m.Interface())
	}
	return m.Interface()
}

// specHas says whether the spec of the document's kind has a field of that name.
func (d *document) specHas(name string) bool {
	info, ok := kinds[d.key.Kind]
	if !ok || info.message == nil {
		return ok && d.key.Kind == Service && contains(serviceFields, name)
	}
	return fieldNamed(info.message.Descriptor(), name) != nil
}

// walk reads nodes into messages.
type walk struct {
	*document
	above []level // the messages around the present one, outermost first
}

type level struct {
	message protoreflect.MessageDescriptor
	path    string
}

func fieldNamed(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := m.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return m.Fields().ByTextName(name)
}

func (w *walk) message(n *yaml.Node, m protoreflect.Message, path string) bool {
	if !w.isMapping(n, path) {
		return false
	}
	w.above = append(w.above, level{m.Descriptor(), path})
	defer func() { w.above = w.above[:len(w.above)-1] }()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		name := resolve(key).Value
		at := path + "." + name
		fd := fieldNamed(m.Descriptor(), name)
		if fd == nil {
			w.refuseAs(NoSuchField, w.at(key), at, "", "unknown field", w.remedy(name))
			continue
		}
		w.mark(at, key, value)
		if isNull(value) || !w.alone(m, fd, key, at) {
			continue
		}
		w.tellOfEffect(fd, key, at)
		w.set(m, fd, value, at)
	}
	return true
}

// tellOfEffect warns of a field that has none here.
func (w *walk) tellOfEffect(fd protoreflect.FieldDescriptor, key *yaml.Node, at string) {
	note, ok := withoutEffect[fd.FullName()]
	switch message := "has no effect in this version" + note.why; {
	case !ok, note.started && w.startsProxies:
	case note.unsafe:
		w.refuseAs(UnsafeToIgnore, w.at(key), at, "", message, note.remedy)
	default:
		w.reportAs(NoEffect, Warning, w.at(key), at, "", message, note.remedy)
	}
}

// alone refuses the second of fields that exclude one another, and a field given by both of its names.
func (w *walk) alone(m protoreflect.Message, fd protoreflect.FieldDescriptor, key *yaml.Node, at string) bool {
	if m.Has(fd) {
		w.refuse(key, at, "", "given twice, as "+fd.JSONName()+" and as "+fd.TextName(), "keep "+fd.JSONName())
		return false
	}
	group := fd.ContainingOneof()
	if group == nil {
		return true
	}
	if other := m.WhichOneof(group); other != nil {
		w.refuse(key, at, "", fmt.Sprintf("%s and %s exclude one another", other.JSONName(), fd.JSONName()), "keep one of the two")
		return false
	}
	return true
}

// remedy tells where a field that does not exist here probably belongs.
func (w *walk) remedy(name string) string {
	here := w.above[len(w.above)-1].message
	for i := len(w.above) - 2; i >= 0; i-- {
		if fieldNamed(w.above[i].message, name) != nil {
			return fmt.Sprintf("it is a field of %s: check the indentation", w.above[i].path)
		}
	}
	var names []string
	for i := range here.Fields().Len() {
		fd := here.Fields().Get(i)
		names = append(names, fd.JSONName())
	}
	if match := nearest.Name(name, names); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	for i := range here.Fields().Len() {
		fd := here.Fields().Get(i)
		if m := fd.Message(); m != nil && !fd.IsMap() && fieldNamed(m, name) != nil {
			return fmt.Sprintf("it belongs under %s", fd.JSONName())
		}
	}
	return "one of: " + list(names)
}

func (w *walk) set(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	switch {
	case fd.IsMap():
		w.setMap(m, fd, n, path)
	case fd.IsList():
		w.setList(m, fd, n, path)
	case fd.Message() != nil:
		v := m.NewField(fd)
		if w.messageValue(n, v.Message(), path) {
			m.Set(fd, v)
		}
	default:
		if v, ok := w.scalar(n, fd, path); ok {
			m.Set(fd, v)
		}
	}
}

func (w *walk) setList(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if !w.isList(n, path) {
		return
	}
	list := m.Mutable(fd).List()
	for i, item := range n.Content {
		item = resolve(item)
		at := path + "[" + strconv.Itoa(i) + "]"
		w.places[at] = w.at(item)
		if isNull(item) {
			w.refuse(item, at, "", "an empty item", "give it a value, or remove its \"-\"")
			continue
		}
		if fd.Message() != nil {
			if v := list.NewElement(); w.messageValue(item, v.Message(), at) {
				list.Append(v)
			}
		} else if v, ok := w.scalar(item, fd, at); ok {
			list.Append(v)
		}
	}
}

func (w *walk) setMap(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if !w.isMapping(n, path) {
		return
	}
	entries := m.Mutable(fd).Map()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), resolve(n.Content[i+1])
		at := path + "[" + key.Value + "]"
		w.mark(at, key, value)
		k, ok := w.mapKey(key, fd.MapKey(), at)
		if !ok {
			continue
		}
		v := entries.NewValue()
		switch {
		case fd.MapValue().Message() != nil:
			// A value that is written as nothing is the empty one: "x-user: {}" and "x-user:" both say that it is there.
			ok = isNull(value) || w.messageValue(value, v.Message(), at)
		case isNull(value):
			v = fd.MapValue().Default()
		default:
			v, ok = w.scalar(value, fd.MapValue(), at)
		}
		if ok {
			entries.Set(k, v)
		}
	}
}

func (w *walk) mapKey(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.MapKey, bool) {
	if fd.Kind() == protoreflect.StringKind {
		w.tellIfAmbiguous(n, path)
		return protoreflect.ValueOfString(n.Value).MapKey(), true
	}
	// All of the API's other maps are by port.
	number, err := strconv.ParseUint(n.Value, 10, 32)
	if err != nil {
		w.refuse(n, path, n.Value, "not a port number", "give one between 1 and 65535")
		return protoreflect.MapKey{}, false
	}
	return protoreflect.ValueOfUint32(uint32(number)).MapKey(), true
}

// messageValue reads a message, or one of the well-known types that are written as a scalar.
func (w *walk) messageValue(n *yaml.Node, m protoreflect.Message, path string) bool {
	switch name := m.Descriptor().FullName(); name {
	case "google.protobuf.Duration":
		value, ok := w.duration(n, path)
		if ok {
			proto.Merge(m.Interface(), durationpb.New(value))
		}
		return ok
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
		return w.free(n, m, path)
	case "google.protobuf.BoolValue", "google.protobuf.UInt32Value", "google.protobuf.Int32Value", "google.protobuf.UInt64Value",
		"google.protobuf.Int64Value", "google.protobuf.DoubleValue", "google.protobuf.StringValue":
		fd := m.Descriptor().Fields().ByName("value")
		value, ok := w.scalar(n, fd, path)
		if ok {
			m.Set(fd, value)
		}
		return ok
	}
	return w.message(n, m, path)
}

func (w *walk) scalar(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (v protoreflect.Value, ok bool) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		s, ok := w.text(n, path)
		return protoreflect.ValueOfString(s), ok
	case protoreflect.BoolKind:
		b, ok := w.bool(n, path)
		return protoreflect.ValueOfBool(b), ok
	case protoreflect.Int32Kind:
		i, ok := w.whole(n, path, math.MinInt32, math.MaxInt32)
		return protoreflect.ValueOfInt32(int32(i)), ok
	case protoreflect.Int64Kind:
		i, ok := w.whole(n, path, math.MinInt64, math.MaxInt64)
		return protoreflect.ValueOfInt64(i), ok
	case protoreflect.Uint32Kind:
		i, ok := w.whole(n, path, 0, math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(i)), ok
	case protoreflect.Uint64Kind:
		i, ok := w.whole(n, path, 0, math.MaxInt64)
		return protoreflect.ValueOfUint64(uint64(i)), ok
	case protoreflect.DoubleKind:
		f, ok := w.real(n, path)
		return protoreflect.ValueOfFloat64(f), ok
	case protoreflect.BytesKind:
		b, ok := w.bytes(n, path)
		return protoreflect.ValueOfBytes(b), ok
	case protoreflect.EnumKind:
		return w.enum(n, fd.Enum(), path)
	}
	w.refuse(n, path, n.Value, "a field of a type that cannot be read: "+fd.Kind().String(), "leave it out")
	return v, false
}

func (w *walk) enum(n *yaml.Node, ed protoreflect.EnumDescriptor, path string) (v protoreflect.Value, ok bool) {
	if n.Kind == yaml.ScalarNode {
		if value := ed.Values().ByName(protoreflect.Name(n.Value)); value != nil {
			return protoreflect.ValueOfEnum(value.Number()), true
		}
	}
	var names []string
	for i := range ed.Values().Len() {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	remedy := "one of: " + list(names)
	if match := nearest.Name(n.Value, names); match != "" && n.Value != "" {
		remedy = fmt.Sprintf("did you mean %s? Allowed are %s", match, list(names))
	}
	w.refuse(n, path, n.Value, "not a value of this field", remedy)
	return v, false
}
