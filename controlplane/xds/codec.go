package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// ServerOptions returns options for the gRPC servers with which a Server is registered. The options save memory:
// without them, the server marshals each response for each client, and retains the copy until the client has read it.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")})}
}

// codec assembles delta responses from the encoded resources that all clients share. It passes all other messages to
// the standard codec.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*deltaResponse); ok {
		return r.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Field numbers of DeltaDiscoveryResponse, of its Resource, and of Any.
const (
	responseVersion, responseResources, responseType, responseNonce, responseRemoved = 1, 2, 4, 5, 6

	resourceVersion, resourceBody, resourceName, resourceAliases = 1, 2, 3, 4

	anyType, anyValue = 1, 2
)

// deltaResponse is a delta response that is about to be sent. It implements proto.Message, so that other codecs can
// encode it too.
type deltaResponse struct{ *response }

// encode returns the response's bytes. The bytes of resources are shared, not copied.
func (r *deltaResponse) encode() mem.BufferSlice {
	out := make(mem.BufferSlice, 0, len(r.resources)+1)
	var own []byte
	own = appendString(own, responseVersion, r.version)
	own = appendString(own, responseType, r.typeURL)
	own = appendString(own, responseNonce, r.nonce)
	for _, name := range r.removed {
		own = protowire.AppendTag(own, responseRemoved, protowire.BytesType)
		own = protowire.AppendString(own, name)
	}
	out = append(out, mem.SliceBuffer(own))
	for _, res := range r.resources {
		out = append(out, res.deltaBuffer())
	}
	for _, name := range r.notFound {
		answer := protowire.AppendTag(nil, responseResources, protowire.BytesType)
		answer = protowire.AppendBytes(answer, appendString(appendString(nil, resourceName, name), resourceAliases, name))
		out = append(out, mem.SliceBuffer(answer))
	}
	return out
}

func appendString(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// ProtoReflect returns the response as a DeltaDiscoveryResponse.
func (r *deltaResponse) ProtoReflect() protoreflect.Message {
	out := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: r.typeURL, SystemVersionInfo: r.version, Nonce: r.nonce, RemovedResources: r.removed,
		Resources: make([]*discoveryv3.Resource, 0, len(r.resources)),
	}
	for _, res := range r.resources {
		out.Resources = append(out.Resources, &discoveryv3.Resource{
			Name: res.Name, Aliases: res.Aliases, Version: res.Version, Resource: res.Body,
		})
	}
	for _, name := range r.notFound {
		out.Resources = append(out.Resources, &discoveryv3.Resource{Name: name, Aliases: []string{name}})
	}
	return out.ProtoReflect()
}

// encodedResource is the encoding of a resource in a delta response.
type encodedResource struct {
	name, version string
	body          *anypb.Any
	bytes         mem.Buffer
	value         []byte // the value of the body, which is a part of bytes
}

func encodeResource(r *Resource) *encodedResource {
	b := appendResource(r.Name, r.Version, r.Aliases, r.Body.GetTypeUrl(), r.Body.GetValue())
	return &encodedResource{name: r.Name, version: r.Version, body: r.Body, bytes: mem.SliceBuffer(b), value: b[len(b)-len(r.Body.GetValue()):]}
}

// appendResource encodes a resource as a field of a DeltaDiscoveryResponse. It allocates a buffer of exactly the
// necessary size. value is at the end of the buffer.
func appendResource(name, version string, aliases []string, typeURL string, value []byte) []byte {
	body := protowire.SizeTag(anyType) + protowire.SizeBytes(len(typeURL)) + protowire.SizeTag(anyValue) + protowire.SizeBytes(len(value))
	size := protowire.SizeTag(resourceBody) + protowire.SizeBytes(body)
	for _, text := range []string{name, version} {
		if text != "" {
			size += protowire.SizeTag(resourceName) + protowire.SizeBytes(len(text))
		}
	}
	for _, alias := range aliases {
		size += protowire.SizeTag(resourceAliases) + protowire.SizeBytes(len(alias))
	}
	b := make([]byte, 0, protowire.SizeTag(responseResources)+protowire.SizeBytes(size))
	b = protowire.AppendVarint(protowire.AppendTag(b, responseResources, protowire.BytesType), uint64(size))
	b = appendString(b, resourceVersion, version)
	b = appendString(b, resourceName, name)
	for _, alias := range aliases {
		b = appendString(b, resourceAliases, alias)
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, resourceBody, protowire.BytesType), uint64(body))
	b = protowire.AppendString(protowire.AppendTag(b, anyType, protowire.BytesType), typeURL)
	return protowire.AppendBytes(protowire.AppendTag(b, anyValue, protowire.BytesType), value)
}
