package xds

import (
	"fmt"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for all else
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// ServerOptions are for the gRPC servers that a Server is registered to. Without them all works too, but each response is
// marshalled anew for each client, and is in memory as often as there are clients that read it at a time.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")})}
}

// codec writes delta responses as the bytes of their resources, which all clients share, and reads delta requests without
// an allocation for each name. All other messages are the usual codec's.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*deltaResponse); ok {
		return r.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*deltaRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return r.read(buffer.ReadOnlyData())
}

// The fields of DeltaDiscoveryResponse, of its Resource, and of Any.
const (
	responseVersion, responseResources, responseType, responseNonce, responseRemoved = 1, 2, 4, 5, 6

	resourceVersion, resourceBody, resourceName = 1, 2, 3

	anyType, anyValue = 1, 2
)

// deltaResponse is a response on its way. It is a message for codecs that know nothing of it.
type deltaResponse struct{ *response }

// buffers are the response's bytes, those of the resources where they are.
func (r *deltaResponse) buffers() mem.BufferSlice {
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
		out = append(out, res.framed())
	}
	return out
}

func appendString(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// ProtoReflect makes the message.
func (r *deltaResponse) ProtoReflect() protoreflect.Message {
	out := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: r.typeURL, SystemVersionInfo: r.version, Nonce: r.nonce, RemovedResources: r.removed,
		Resources: make([]*discoveryv3.Resource, 0, len(r.resources)),
	}
	for _, res := range r.resources {
		out.Resources = append(out.Resources, &discoveryv3.Resource{Name: res.Name, Version: res.Version, Resource: res.Body})
	}
	return out.ProtoReflect()
}

// frame is a resource as a delta response holds it.
type frame struct {
	name, version string
	body          *anypb.Any
	bytes         mem.Buffer
	value         []byte // the body's, in the bytes
}

func newFrame(r *Resource) *frame {
	b := appendResource(r.Name, r.Version, r.Body.GetTypeUrl(), r.Body.GetValue())
	return &frame{name: r.Name, version: r.Version, body: r.Body, bytes: mem.SliceBuffer(b), value: b[len(b)-len(r.Body.GetValue()):]}
}

// appendResource makes the field of a response, of the size that it has. The value comes last.
func appendResource(name, version, typeURL string, value []byte) []byte {
	body := protowire.SizeTag(anyType) + protowire.SizeBytes(len(typeURL)) + protowire.SizeTag(anyValue) + protowire.SizeBytes(len(value))
	size := protowire.SizeTag(resourceBody) + protowire.SizeBytes(body)
	for _, text := range []string{name, version} {
		if text != "" {
			size += protowire.SizeTag(resourceName) + protowire.SizeBytes(len(text))
		}
	}
	b := make([]byte, 0, protowire.SizeTag(responseResources)+protowire.SizeBytes(size))
	b = protowire.AppendVarint(protowire.AppendTag(b, responseResources, protowire.BytesType), uint64(size))
	b = appendString(b, resourceVersion, version)
	b = appendString(b, resourceName, name)
	b = protowire.AppendVarint(protowire.AppendTag(b, resourceBody, protowire.BytesType), uint64(body))
	b = protowire.AppendString(protowire.AppendTag(b, anyType, protowire.BytesType), typeURL)
	return protowire.AppendBytes(protowire.AppendTag(b, anyValue, protowire.BytesType), value)
}

// The fields of DeltaDiscoveryRequest of which there may be thousands, and of an entry of a map.
const (
	requestSubscribe, requestUnsubscribe, requestInitial = 3, 4, 5

	mapKey, mapValue = 1, 2
)

// deltaRequest is a request as it came. Codecs that know nothing of it read the message.
type deltaRequest struct {
	message                discoveryv3.DeltaDiscoveryRequest
	subscribe, unsubscribe []string
	initial                map[string]string
}

// ProtoReflect gives the message that is read.
func (r *deltaRequest) ProtoReflect() protoreflect.Message { return r.message.ProtoReflect() }

// read takes the names out of the request, as parts of one string, and leaves the rest to the message.
func (r *deltaRequest) read(b []byte) error {
	text := string(b)
	r.expect(b)
	part := func(rest []byte, length int) string { end := len(text) - len(rest); return text[end-length : end] }
	var rest []byte
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		whole := b[:n+size]
		b = b[n+size:]
		if kind != protowire.BytesType || field != requestSubscribe && field != requestUnsubscribe && field != requestInitial {
			rest = append(rest, whole...)
			continue
		}
		value, _ := protowire.ConsumeBytes(whole[n:])
		if err := r.take(field, part(b, len(value))); err != nil {
			return err
		}
	}
	return proto.Unmarshal(rest, &r.message)
}

// expect makes room for what there may be thousands of. It stops where the request is malformed, which is told elsewhere.
func (r *deltaRequest) expect(b []byte) {
	names, versions := 0, 0
	for len(b) > 0 {
		field, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		switch field {
		case requestSubscribe:
			names++
		case requestInitial:
			versions++
		}
		b = b[n:]
	}
	if names > 0 {
		r.subscribe = make([]string, 0, names)
	}
	if versions > 0 {
		r.initial = make(map[string]string, versions)
	}
}

func (r *deltaRequest) take(field protowire.Number, value string) error {
	if field == requestInitial {
		return r.takeInitial(value)
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("a resource name is not UTF-8: %q", value)
	}
	if field == requestSubscribe {
		r.subscribe = append(r.subscribe, value)
	} else {
		r.unsubscribe = append(r.unsubscribe, value)
	}
	return nil
}

// takeInitial reads one entry of the map of versions.
func (r *deltaRequest) takeInitial(entry string) error {
	var name, version string
	for b := []byte(entry); len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		value, _ := protowire.ConsumeBytes(b[n:])
		b = b[n+size:]
		end := len(entry) - len(b)
		switch {
		case kind != protowire.BytesType:
		case field == mapKey:
			name = entry[end-len(value) : end]
		case field == mapValue:
			version = entry[end-len(value) : end]
		}
	}
	if !utf8.ValidString(name) || !utf8.ValidString(version) {
		return fmt.Errorf("a resource's name or version is not UTF-8: %q %q", name, version)
	}
	if r.initial == nil {
		r.initial = map[string]string{}
	}
	r.initial[name] = version
	return nil
}

// request is what was read, by whichever codec.
func (r *deltaRequest) request() *request {
	m := &r.message
	out := &request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), refusal: m.GetErrorDetail(),
		subscribe: r.subscribe, unsubscribe: r.unsubscribe, initial: r.initial,
	}
	if out.subscribe == nil && out.unsubscribe == nil && out.initial == nil {
		out.subscribe, out.unsubscribe = m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe()
		out.initial = m.GetInitialResourceVersions()
	}
	out.resumes = len(out.initial) > 0
	return out
}
