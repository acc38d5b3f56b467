package config

import (
	"fmt"
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// readSpec strictly decodes the spec of an Istio kind into the API's own type. Each error is reported at its position,
// and fields without effect produce a warning.
//
// It walks the YAML nodes by the message's descriptor. It does not use protojson, because protojson stops at the first
// error and reports no line numbers. A test compares the results of both decoders.
func (d *document) readSpec(n *yaml.Node, info kindInfo) proto.Message {
	m := info.message.New()
	if n == nil || isNull(n) {
		// An empty spec has a meaning for some kinds: a PeerAuthentication that inherits everything, a policy that
		// denies everything.
		n = &yaml.Node{Kind: yaml.MappingNode, Line: d.origin.Line - d.offset, Column: d.origin.Column}
	}
	w := specDecoder{document: d}
	w.message(n, m, "spec")
	if !d.refused {
		info.validate(validator{d, "spec"}, m.Interface())
	}
	return m.Interface()
}

// hasSpecField reports whether the spec of the document's kind has a field called name.
func (d *document) hasSpecField(name string) bool {
	info, ok := kinds[d.key.Kind]
	if !ok || info.message == nil {
		return ok && d.key.Kind == Service && contains(serviceFields, name)
	}
	return fieldNamed(info.message.Descriptor(), name) != nil
}

// specDecoder decodes nodes into messages.
type specDecoder struct {
	*document
	parents []level // the enclosing messages, outermost first
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

func (w *specDecoder) message(n *yaml.Node, m protoreflect.Message, path string) bool {
	if !w.isMapping(n, path) {
		return false
	}
	w.parents = append(w.parents, level{m.Descriptor(), path})
	defer func() { w.parents = w.parents[:len(w.parents)-1] }()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], followAlias(n.Content[i+1])
		name := followAlias(key).Value
		at := path + "." + name
		fd := fieldNamed(m.Descriptor(), name)
		if fd == nil {
			w.refuseAs(NoSuchField, w.nodePosition(key), at, "", "unknown field", w.suggestField(name))
			continue
		}
		w.setPosition(at, key, value)
		if isNull(value) || !w.checkExclusive(m, fd, key, at) {
			continue
		}
		w.warnIgnored(fd, key, at)
		w.set(m, fd, value, at)
	}
	return true
}

// warnIgnored adds a warning if the field has no effect in this version. If ignoring the field would be unsafe, it
// refuses the document instead.
func (w *specDecoder) warnIgnored(fd protoreflect.FieldDescriptor, key *yaml.Node, at string) {
	note, ok := ignoredFields[fd.FullName()]
	switch message := "has no effect in this version" + note.reason; {
	case !ok, note.started && w.startsProxies:
	case note.unsafe:
		w.refuseAs(UnsafeToIgnore, w.nodePosition(key), at, "", message, note.remedy)
	default:
		w.reportAs(NoEffect, Warning, w.nodePosition(key), at, "", message, note.remedy)
	}
}

// checkExclusive refuses fd and returns false if fd is already set, also under its other name, or if a field is set
// that excludes fd.
func (w *specDecoder) checkExclusive(m protoreflect.Message, fd protoreflect.FieldDescriptor, key *yaml.Node, at string) bool {
	if m.Has(fd) {
		message := "set twice"
		if fd.JSONName() != fd.TextName() {
			message += ", as " + fd.JSONName() + " and as " + fd.TextName()
		}
		w.refuse(key, at, "", message, "set it once, as "+fd.JSONName())
		return false
	}
	group := fd.ContainingOneof()
	if group == nil {
		return true
	}
	if other := m.WhichOneof(group); other != nil {
		w.refuse(key, at, "", fmt.Sprintf("%s and %s exclude each other", other.JSONName(), fd.JSONName()), "remove one of the two")
		return false
	}
	return true
}

// suggestField returns a remedy for the unknown field name: the enclosing message or submessage that has a field of
// this name, or a field with a similar name.
func (w *specDecoder) suggestField(name string) string {
	here := w.parents[len(w.parents)-1].message
	for i := len(w.parents) - 2; i >= 0; i-- {
		if fieldNamed(w.parents[i].message, name) != nil {
			return fmt.Sprintf("%[1]s has a field with this name: check the indentation", w.parents[i].path)
		}
	}
	var names []string
	for i := range here.Fields().Len() {
		fd := here.Fields().Get(i)
		names = append(names, fd.JSONName())
	}
	if match := suggest.Name(name, names); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	for i := range here.Fields().Len() {
		fd := here.Fields().Get(i)
		if m := fd.Message(); m != nil && !fd.IsMap() && fieldNamed(m, name) != nil {
			return fmt.Sprintf("move the field to %s", fd.JSONName())
		}
	}
	return "one of: " + joinNames(names)
}

func (w *specDecoder) set(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
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

func (w *specDecoder) setList(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if !w.isList(n, path) {
		return
	}
	list := m.Mutable(fd).List()
	for i, item := range n.Content {
		item = followAlias(item)
		at := path + "[" + strconv.Itoa(i) + "]"
		w.positions[at] = w.nodePosition(item)
		if isNull(item) {
			w.refuse(item, at, "", "an empty item", "set a value, or remove its \"-\"")
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

func (w *specDecoder) setMap(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if !w.isMapping(n, path) {
		return
	}
	entries := m.Mutable(fd).Map()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := followAlias(n.Content[i]), followAlias(n.Content[i+1])
		at := path + "[" + key.Value + "]"
		w.setPosition(at, key, value)
		k, ok := w.mapKey(key, fd.MapKey(), at)
		if !ok {
			continue
		}
		v := entries.NewValue()
		switch {
		case fd.MapValue().Message() != nil:
			// A null value is an empty message: "x-user: {}" and "x-user:" both match if the header is present.
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

func (w *specDecoder) mapKey(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.MapKey, bool) {
	if fd.Kind() == protoreflect.StringKind {
		w.warnAmbiguous(n, path)
		return protoreflect.ValueOfString(n.Value).MapKey(), true
	}
	// All other maps of the API have port numbers as keys.
	number, err := strconv.ParseUint(n.Value, 10, 32)
	if err != nil {
		w.refuse(n, path, n.Value, "not a port number", "set one between 1 and 65535")
		return protoreflect.MapKey{}, false
	}
	return protoreflect.ValueOfUint32(uint32(number)).MapKey(), true
}

// messageValue decodes n into m. A message may be a well-known type that YAML writes as a scalar (Duration, BoolValue).
func (w *specDecoder) messageValue(n *yaml.Node, m protoreflect.Message, path string) bool {
	switch name := m.Descriptor().FullName(); name {
	case "google.protobuf.Duration":
		value, ok := w.readDuration(n, path)
		if ok {
			proto.Merge(m.Interface(), durationpb.New(value))
		}
		return ok
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
		return w.decodeStruct(n, m, path)
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

func (w *specDecoder) scalar(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (v protoreflect.Value, ok bool) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		s, ok := w.readText(n, path)
		return protoreflect.ValueOfString(s), ok
	case protoreflect.BoolKind:
		b, ok := w.readBool(n, path)
		return protoreflect.ValueOfBool(b), ok
	case protoreflect.Int32Kind:
		i, ok := w.readInt(n, path, math.MinInt32, math.MaxInt32)
		return protoreflect.ValueOfInt32(int32(i)), ok
	case protoreflect.Int64Kind:
		i, ok := w.readInt(n, path, math.MinInt64, math.MaxInt64)
		return protoreflect.ValueOfInt64(i), ok
	case protoreflect.Uint32Kind:
		i, ok := w.readInt(n, path, 0, math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(i)), ok
	case protoreflect.Uint64Kind:
		i, ok := w.readInt(n, path, 0, math.MaxInt64)
		return protoreflect.ValueOfUint64(uint64(i)), ok
	case protoreflect.DoubleKind:
		f, ok := w.readFloat(n, path)
		return protoreflect.ValueOfFloat64(f), ok
	case protoreflect.BytesKind:
		b, ok := w.readBytes(n, path)
		return protoreflect.ValueOfBytes(b), ok
	case protoreflect.EnumKind:
		return w.enum(n, fd.Enum(), path)
	}
	w.refuse(n, path, n.Value, "the control plane cannot read a field of type "+fd.Kind().String(), "remove the field")
	return v, false
}

func (w *specDecoder) enum(n *yaml.Node, ed protoreflect.EnumDescriptor, path string) (v protoreflect.Value, ok bool) {
	if n.Kind == yaml.ScalarNode {
		if value := ed.Values().ByName(protoreflect.Name(n.Value)); value != nil {
			return protoreflect.ValueOfEnum(value.Number()), true
		}
	}
	var names []string
	for i := range ed.Values().Len() {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	remedy := "one of: " + joinNames(names)
	if match := suggest.Name(n.Value, names); match != "" && n.Value != "" {
		remedy = fmt.Sprintf("did you mean %s? Allowed are %s", match, joinNames(names))
	}
	w.refuse(n, path, n.Value, "not a value of this field", remedy)
	return v, false
}
