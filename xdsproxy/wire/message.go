// Package wire reads and writes the encoded discovery messages of xDS without decoding them: it reads only the fields
// that a relay needs, and passes all others through.
package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// Service is the gRPC service of ADS, and SotWMethod and DeltaMethod are its methods.
const (
	Service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	SotWMethod  = "StreamAggregatedResources"
	DeltaMethod = "DeltaAggregatedResources"
)

// Variant is the xDS protocol variant of a stream.
type Variant int

// The protocol variants: all resources of a type ("state of the world"), or only changes.
const (
	SotW Variant = iota
	Delta
)

// String returns "delta" or "sotw".
func (v Variant) String() string {
	if v == Delta {
		return "delta"
	}
	return "sotw"
}

// Method returns the full name of the gRPC method.
func (v Variant) Method() string {
	if v == Delta {
		return "/" + Service + "/" + DeltaMethod
	}
	return "/" + Service + "/" + SotWMethod
}

// Message is one encoded message. It owns a reference to its buffers.
type Message struct{ Data mem.BufferSlice }

// Free releases the reference. The message must not be used afterwards.
func (m *Message) Free() {
	m.Data.Free()
	m.Data = nil
}

// Share returns another reference to the message.
func (m *Message) Share() *Message {
	m.Data.Ref()
	return &Message{Data: m.Data}
}

// WithField returns the message with a text field set. The field is appended: the last occurrence of a field counts in
// protobuf.
func (m *Message) WithField(field int, text string) *Message {
	shared := m.Share()
	data := make(mem.BufferSlice, 0, len(shared.Data)+1)
	data = append(data, shared.Data...)
	return &Message{Data: append(data, mem.SliceBuffer(AppendText(nil, field, text)))}
}

// Codec is a gRPC codec that exchanges encoded messages as Messages, without copying them.
type Codec struct{}

// Marshal returns a reference to the message, because gRPC frees the buffers that it has sent.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*Message)
	if !ok {
		return nil, fmt.Errorf("a message to be sent is a %T", v)
	}
	m.Data.Ref()
	return m.Data, nil
}

// Unmarshal stores a reference to the message. The caller frees it.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("a message is received into a %T", v)
	}
	data.Ref()
	m.Data = data
	return nil
}

// Name returns the content subtype, which is that of protobuf.
func (Codec) Name() string { return "proto" }
