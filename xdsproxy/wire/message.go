// Package wire reads and changes encoded xDS discovery messages without decoding them completely. It parses only the
// fields that a relay needs, and preserves all other bytes.
package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// Service is the gRPC service of ADS. SotWMethod and DeltaMethod are its methods.
const (
	Service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	SotWMethod  = "StreamAggregatedResources"
	DeltaMethod = "DeltaAggregatedResources"
)

// Variant is the xDS protocol variant of a stream.
type Variant int

// SotW ("state of the world") sends all resources of a type. Delta sends only changes.
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

// Free releases the message's reference. The caller must not use the message afterwards.
func (m *Message) Free() {
	m.Data.Free()
	m.Data = nil
}

// Share returns another reference to the message.
func (m *Message) Share() *Message {
	m.Data.Ref()
	return &Message{Data: m.Data}
}

// WithField returns a message in which the string field has the value text; m is unchanged. It appends the field,
// because protobuf decoders use the last occurrence of a field.
func (m *Message) WithField(field int, text string) *Message {
	shared := m.Share()
	data := make(mem.BufferSlice, 0, len(shared.Data)+1)
	data = append(data, shared.Data...)
	return &Message{Data: append(data, mem.SliceBuffer(AppendText(nil, field, text)))}
}

// Codec is a gRPC codec for Messages, which are already encoded. It does not copy them.
type Codec struct{}

// Marshal returns a new reference to the message's buffers. gRPC frees it after sending, so v remains valid.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*Message)
	if !ok {
		return nil, fmt.Errorf("wire: cannot marshal a %T, only a *wire.Message", v)
	}
	m.Data.Ref()
	return m.Data, nil
}

// Unmarshal stores a reference to the received data in v, a *Message. The caller must free the message.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("wire: cannot unmarshal into a %T, only into a *wire.Message", v)
	}
	data.Ref()
	m.Data = data
	return nil
}

// Name returns the gRPC content subtype of protobuf.
func (Codec) Name() string { return "proto" }
