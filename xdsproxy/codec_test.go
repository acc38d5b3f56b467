package xdsproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// codec is a codec with which gRPC clients and servers exchange frames.
type codec struct{}

// Marshal returns another reference, because gRPC frees the buffers that it sends.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("sending a %T through the raw codec", v)
	}
	f.data.Ref()
	return f.data, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("receiving a %T through the raw codec", v)
	}
	data.Ref()
	f.data = data
	return nil
}

func (codec) Name() string { return "proto" }
