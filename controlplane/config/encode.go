package config

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Encode formats r as a JSON document. A Parser that reads the document returns an equal resource.
//
// It does not use protojson, because protojson quotes 64-bit numbers, and a Parser refuses numbers in quotes.
func Encode(r *Resource) ([]byte, error) {
	metadata := map[string]any{"name": r.Name}
	setText(metadata, "namespace", r.Namespace)
	if len(r.Labels) > 0 {
		metadata["labels"] = r.Labels
	}
	if len(r.Annotations) > 0 {
		metadata["annotations"] = r.Annotations
	}
	if !r.Created.IsZero() {
		metadata["creationTimestamp"] = r.Created.Format(time.RFC3339Nano)
	}
	document := map[string]any{"apiVersion": r.APIVersion, "kind": r.Kind, "metadata": metadata}
	switch spec := r.Spec.(type) {
	case *ServiceSpec:
		document["spec"] = encodeService(spec)
	case *SecretSpec:
		document["data"] = encodeSecret(spec)
	case *PodSpec:
		encodePod(spec, document, metadata)
	case *EndpointSliceSpec:
		encodeEndpointSlice(spec, document, metadata)
	case *NodeSpec:
		encodeNode(spec, metadata)
	case *NamespaceSpec:
		if spec.Terminating {
			metadata["deletionTimestamp"] = encodedDeletion
		}
	case proto.Message:
		document["spec"] = encodeMessage(spec.ProtoReflect())
	}
	return json.Marshal(document)
}

func encodeService(s *ServiceSpec) map[string]any {
	ports := []any{}
	for _, p := range s.Ports {
		port := map[string]any{"port": p.Port, "protocol": p.Protocol}
		setText(port, "name", p.Name)
		setText(port, "appProtocol", p.AppProtocol)
		setText(port, "targetPort", p.TargetPortName)
		if p.TargetPort != 0 {
			port["targetPort"] = p.TargetPort
		}
		ports = append(ports, port)
	}
	spec := map[string]any{"type": s.Type, "ports": ports}
	setText(spec, "clusterIP", s.ClusterIP)
	if len(s.ClusterIPs) > 0 {
		spec["clusterIPs"] = s.ClusterIPs
	}
	setText(spec, "externalName", s.ExternalName)
	setText(spec, "trafficDistribution", s.TrafficDistribution)
	if s.PublishNotReadyAddresses {
		spec["publishNotReadyAddresses"] = true
	}
	if s.NodeLocal {
		spec["internalTrafficPolicy"] = nodeLocalPolicy
	}
	if len(s.Selector) > 0 {
		spec["selector"] = s.Selector
	}
	return spec
}

func setText(fields map[string]any, name, value string) {
	if value != "" {
		fields[name] = value
	}
}

func encodeMessage(m protoreflect.Message) any {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Duration":
		return m.Interface().(*durationpb.Duration).AsDuration().String()
	case "google.protobuf.Struct":
		return m.Interface().(*structpb.Struct).AsMap()
	case "google.protobuf.ListValue":
		return m.Interface().(*structpb.ListValue).AsSlice()
	case "google.protobuf.Value":
		return m.Interface().(*structpb.Value).AsInterface()
	case "google.protobuf.BoolValue", "google.protobuf.UInt32Value", "google.protobuf.DoubleValue", "google.protobuf.Int32Value",
		"google.protobuf.UInt64Value", "google.protobuf.Int64Value", "google.protobuf.StringValue":
		return m.Get(m.Descriptor().Fields().ByName("value")).Interface()
	}
	fields := map[string]any{}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields[fd.JSONName()] = encodeField(fd, v)
		return true
	})
	return fields
}

func encodeField(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case fd.IsMap():
		entries := map[string]any{}
		v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			entries[key.String()] = encodeValue(fd.MapValue(), value)
			return true
		})
		return entries
	case fd.IsList():
		list := make([]any, 0, v.List().Len())
		for i := range v.List().Len() {
			list = append(list, encodeValue(fd, v.List().Get(i)))
		}
		return list
	}
	return encodeValue(fd, v)
}

func encodeValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	if fd.Message() != nil {
		return encodeMessage(v.Message())
	}
	if ed := fd.Enum(); ed != nil {
		if value := ed.Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name())
		}
	}
	return v.Interface()
}
