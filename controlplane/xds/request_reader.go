package xds

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// maxRequest is the maximum size in bytes of one request. The request of a reconnecting Envoy lists all its
	// resources.
	maxRequest = 16 << 20
	// flowWindow is the size of a stream's receive buffer in the transport. Requests up to this size are not charged to
	// the request budget, because the number of streams already limits their memory.
	flowWindow = 64 << 10
	// requestTimeout is the time within which one request must arrive, plus one second for each minRequestRate bytes of
	// the request.
	requestTimeout = 10 * time.Second
	minRequestRate = 256 << 10
	// budgetTimeout limits how long a large request waits for room in the request budget.
	budgetTimeout = 10 * time.Second
	// firstRequestTimeout is how long a stream may exist before its first request.
	firstRequestTimeout = 15 * time.Second
)

// messageReader reads gRPC messages in parts. The server can then wait for room in the request budget before the client
// sends the body of a message. With gRPC's RecvMsg it could not: RecvMsg permits the client to send the whole message
// as soon as the length is known.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// newMessageReader returns the message reader of the stream with the context ctx. It fails if the stream does not use
// gRPC's own transport.
func newMessageReader(ctx context.Context) (messageReader, error) {
	if reader, ok := grpc.ServerTransportStreamFromContext(ctx).(messageReader); ok {
		return reader, nil
	}
	return nil, status.Error(codes.Internal, "the transport does not support reading a message in parts: serve with grpc.Server.Serve")
}

// message is one received request.
type message struct {
	data    *[]byte
	pooled  bool
	release func() // releases the request's share of the request budget
}

// recycle returns the message's buffer to its pool. The caller must not use the buffer afterwards.
func (m message) recycle() {
	if m.pooled {
		requestBuffers.Put(m.data)
	}
}

// readMessage reads the next message of the stream from messages. It returns io.EOF when the client has closed the
// stream.
func (c *connection) readMessage(messages messageReader) (message, error) {
	var header [5]byte
	if err := messages.ReadMessageHeader(header[:]); err != nil {
		return message{}, err
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	switch {
	case header[0] != 0:
		return message{}, status.Error(codes.Unimplemented, "compressed requests are not supported")
	case size > maxRequest:
		return message{}, status.Errorf(codes.ResourceExhausted, "the request has %d bytes; at most %d are allowed", size, maxRequest)
	}
	release, err := c.acquireRequest(size)
	if err != nil {
		return message{}, err
	}
	// A blocked read ends only when data arrives or the stream ends. The timer therefore ends the stream.
	timeout := requestTimeout + time.Duration(size/minRequestRate)*time.Second
	timer := time.AfterFunc(timeout, func() {
		c.fail(status.Errorf(codes.DeadlineExceeded, "a request of %d bytes did not arrive within %s", size, timeout))
	})
	defer timer.Stop()
	m := newMessage(int(size), release)
	if err := readFull(messages, *m.data); err != nil {
		release()
		return message{}, err
	}
	return m, nil
}

// newMessage returns a message with a buffer of size bytes. It allocates a large buffer instead of using a pool,
// because a pool would retain it.
func newMessage(size int, release func()) message {
	if size <= 1<<20 {
		return message{data: requestBuffers.Get(size), pooled: true, release: release}
	}
	data := make([]byte, size)
	return message{data: &data, release: release}
}

// readFull fills data with the next bytes of the message. It copies each part and frees it, because a client may send
// each byte in a separate frame, and a frame uses many times the memory of its data.
func readFull(messages messageReader, data []byte) error {
	for len(data) > 0 {
		part, err := messages.Read(min(len(data), flowWindow))
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "the stream ended before a request was complete")
		}
		if err != nil {
			return err
		}
		data = data[part.CopyTo(data):]
		part.Free()
	}
	return nil
}

// fail ends the stream with the error err. Only the first call has an effect.
func (c *connection) fail(err error) {
	select {
	case c.recvErr <- err:
	default: // the stream already has an error
	}
}

// acquireRequest waits until the request budget has room for a request of size bytes. The caller calls release when the
// request has been handled.
func (c *connection) acquireRequest(size int64) (release func(), err error) {
	if size <= flowWindow {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, budgetTimeout)
	defer cancel()
	release, err = c.quota.acquireRequest(ctx, size)
	if err != nil && c.ctx.Err() == nil {
		return nil, status.Errorf(codes.ResourceExhausted, "the requests of other clients use the memory that a request of %d bytes needs: connect again later", size)
	}
	return release, err
}
