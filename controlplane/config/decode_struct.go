package config

import (
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// decodeStruct decodes a value without a schema: the value of an EnvoyFilter's patch, or the configuration of a
// plug-in. m is a Struct, a Value or a ListValue.
func (w *specDecoder) decodeStruct(n *yaml.Node, m protoreflect.Message, path string) bool {
	switch to := m.Interface().(type) {
	case *structpb.Struct:
		if !w.isMapping(n, path) {
			return false
		}
		proto.Merge(to, w.decodeStructValue(n, path).GetStructValue())
	case *structpb.ListValue:
		if !w.isList(n, path) {
			return false
		}
		proto.Merge(to, w.decodeStructValue(n, path).GetListValue())
	case *structpb.Value:
		proto.Merge(to, w.decodeStructValue(n, path))
	}
	return true
}

func (w *specDecoder) decodeStructValue(n *yaml.Node, path string) *structpb.Value {
	n = followAlias(n)
	w.positions[path] = w.nodePosition(n)
	switch n.Kind {
	case yaml.MappingNode:
		fields := map[string]*structpb.Value{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := followAlias(n.Content[i])
			w.warnAmbiguous(key, path+"."+key.Value)
			fields[key.Value] = w.decodeStructValue(n.Content[i+1], path+"."+key.Value)
			w.positions[path+"."+key.Value] = w.nodePosition(key)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	case yaml.SequenceNode:
		list := &structpb.ListValue{}
		for i, item := range n.Content {
			list.Values = append(list.Values, w.decodeStructValue(item, path+"["+strconv.Itoa(i)+"]"))
		}
		return structpb.NewListValue(list)
	}
	return w.decodeStructScalar(n, path)
}

func (w *specDecoder) decodeStructScalar(n *yaml.Node, path string) *structpb.Value {
	var number float64
	var truth bool
	switch n.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		if n.Decode(&truth) == nil {
			return structpb.NewBoolValue(truth)
		}
	case "!!int", "!!float":
		if n.Decode(&number) == nil && !math.IsNaN(number) && !math.IsInf(number, 0) {
			return structpb.NewNumberValue(number)
		}
		w.refuse(n, path, n.Value, "this number cannot be represented in JSON", "write it as text, in quotes")
	}
	if truth, ok := w.readYAML11Bool(n, Warning, path); ok {
		return structpb.NewBoolValue(truth)
	}
	return structpb.NewStringValue(n.Value)
}
