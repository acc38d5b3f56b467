package sds

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is gRPC's protobuf codec with a smaller read buffer. For a request above 32 KiB, gRPC's codec uses a pooled
// buffer of 1 MiB, which stays allocated. The first request of each of Envoy's streams is that large, because it lists
// Envoy's extensions, but it arrives only every few hours.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data.Materialize())}, v)
}
