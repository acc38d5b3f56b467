package sds

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is gRPC's own for protobuf, but for the memory that it reads requests in: that takes a megabyte from a pool for each
// of more than 32 KiB, which stays with the pool. The first request of each of Envoy's streams is as large, since it lists
// Envoy's extensions, and is read once in hours.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal is that of encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data.Materialize())}, v)
}
