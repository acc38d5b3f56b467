package wire

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the discovery messages.
const (
	// Fields of responses in SotW and delta. ResponseRemoved exists only in delta.
	ResponseVersion, ResponseResources, ResponseType, ResponseNonce, ResponseRemoved = 1, 2, 4, 5, 6

	ResourceBody, AnyType = 2, 1

	SotWVersion, SotWNode, SotWNames, SotWType, SotWNonce, SotWError          = 1, 2, 3, 4, 5, 6
	DeltaNode, DeltaType, DeltaSubscribe, DeltaUnsubscribe, DeltaKnown        = 1, 2, 3, 4, 5
	DeltaNonce, DeltaError                                                    = 6, 7
	statusCode, statusText                                             uint64 = 1, 2
)

// NonceField returns the field number of response_nonce in a request of the variant v.
func NonceField(v Variant) int {
	if v == Delta {
		return DeltaNonce
	}
	return SotWNonce
}

// NewMessage returns a message that consists of the encoded bytes. It does not copy them.
func NewMessage(b []byte) *Message { return &Message{Data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// AppendText appends a field of type string.
func AppendText(b []byte, field int, text string) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendString(b, text)
}

// AppendBytes appends a field of bytes or an encoded message.
func AppendBytes(b []byte, field int, content []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendBytes(b, content)
}

// AppendError appends a google.rpc.Status with the reason. If reason is nil, it appends nothing.
func AppendError(b []byte, field int, reason error) []byte {
	if reason == nil {
		return b
	}
	const invalidArgument = 3
	s := protowire.AppendTag(nil, protowire.Number(statusCode), protowire.VarintType)
	s = protowire.AppendVarint(s, invalidArgument)
	return AppendBytes(b, field, AppendText(s, int(statusText), strings.ToValidUTF8(reason.Error(), "\uFFFD")))
}
