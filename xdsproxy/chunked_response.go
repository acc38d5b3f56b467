package xdsproxy

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Responses of at least minChunkedSize are forwarded to Envoy while they arrive, starting when firstChunkSize has
// arrived. Smaller responses arrive so soon that they are not worth the risk: if the control plane fails during a
// chunked response, the relay has to end Envoy's stream.
const (
	minChunkedSize = 2 << 20
	firstChunkSize = 1 << 20
)

// receiveRest receives the rest of a response and processes it. A large response is forwarded in chunks.
func (a *upstreamStream) receiveRest() error {
	f := new(frame)
	if a.upstream.Remaining() >= minChunkedSize && a.canChunk() {
		typeURL, err := a.receiveStart(f)
		if err != nil {
			return err
		}
		if typeURL != "" {
			a.markHeard()
			return a.forwardChunks(f.data, typeURL)
		}
	}
	var err error
	if f.data, err = a.upstream.ReadRest(f.data); err != nil {
		return err
	}
	a.markHeard()
	if f.data.Len() >= minChunkedSize {
		a.relay.isChunkBroken.Store(false)
	}
	if err := a.dispatch(f, a.upstream.HasNext()); err != nil {
		a.cancel(fmt.Errorf("sending to Envoy: %w", err))
		return err
	}
	return nil
}

// markHeard records that data of the control plane arrived.
func (a *upstreamStream) markHeard() {
	a.lastHeard.Store(int64(uptime()))
	if !a.answered.Swap(true) {
		a.tracker.markConnected(a.lease.address)
	}
}

// canChunk reports whether a response may be forwarded in chunks. It may not if the last chunked response was cut off,
// if a tap needs the complete message, if Envoy is served from the last good configuration, or if the nonce is
// replaced, which changes the size.
func (a *upstreamStream) canChunk() bool {
	if a.relay.isChunkBroken.Load() || a.relay.isUnchunkable.Load() || a.relay.taps.active.Load() || a.epoch != 1 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record.snapshot == nil
}

// receiveStart receives the first chunk and returns the type of the response. It returns "" if the response must not be
// chunked.
func (a *upstreamStream) receiveStart(f *frame) (typeURL string, err error) {
	for received := 0; received < firstChunkSize; {
		piece, err := a.upstream.NextPiece()
		if err != nil {
			f.free()
			return "", err
		}
		f.data = append(f.data, piece)
		received += piece.Len()
	}
	typeURL = firstResourceType(a.proto, f.data[0].ReadOnlyData())
	_, local := a.relay.localTypes[typeURL]
	_, rewritten := a.relay.config.Rewrite[typeURL]
	if local || rewritten {
		return "", nil
	}
	return typeURL, nil
}

var errIncomplete = errors.New("a response failed after a part of it was sent to Envoy")

// forwardChunks forwards a response to Envoy while it arrives, except for the last chunk. That is sent after the
// complete response was parsed and recorded, like any other response. On an error the relay ends Envoy's stream in the
// middle of the message, and Envoy sends its requests again. forwardChunks takes ownership of chunks.
func (a *upstreamStream) forwardChunks(chunks mem.BufferSlice, typeURL string) error {
	a.deliverMu.Lock()
	defer a.deliverMu.Unlock()
	if err := a.ctx.Err(); err != nil { // nothing was sent to Envoy yet
		chunks.Free()
		return err
	}
	size := chunks.Len() + a.upstream.Remaining()
	g := &incrementalParser{proto: a.proto, writer: a.beginChunked(typeURL)}
	defer g.free()
	last, err := a.copyChunks(chunks, size, g)
	if err == nil {
		err = a.completeChunked(last, size, typeURL, g)
	}
	if err != nil {
		a.relay.isChunkBroken.Store(true)
		g.writer.abandon()
		a.cancel(fmt.Errorf("%w: %w", errIncomplete, err))
	}
	return err
}

// copyChunks sends all chunks but the last, passes them to the parser, and returns the last chunk.
func (a *upstreamStream) copyChunks(chunks mem.BufferSlice, size int, g *incrementalParser) (last mem.Buffer, err error) {
	if err := a.envoy.BeginMessage(size); err != nil {
		chunks.Free()
		return nil, err
	}
	for {
		for len(chunks) > 0 && (len(chunks) > 1 || a.upstream.Remaining() > 0) {
			if err := a.envoy.WritePiece(chunks[:1]); err != nil {
				chunks.Free()
				return nil, err
			}
			g.add(chunks[0])
			chunks = chunks[1:]
		}
		if a.upstream.Remaining() == 0 {
			return chunks[0], nil
		}
		piece, err := a.upstream.NextPiece()
		if err != nil {
			chunks.Free()
			return nil, err
		}
		a.markHeard()
		chunks = append(chunks[:0:0], piece)
	}
}

// completeChunked checks and records the response, and sends its last chunk.
func (a *upstreamStream) completeChunked(last mem.Buffer, size int, typeURL string, g *incrementalParser) error {
	last.Ref()
	defer last.Free()
	r, err := g.finish(last)
	switch {
	case err != nil:
		err = fmt.Errorf("reading the response: %w", err)
	case r.typeURL != typeURL:
		err = fmt.Errorf("the response is of the type %q and has resources of the type %q", r.typeURL, typeURL)
	case joinNonce(a.epoch, r.nonce) != r.nonce:
		err = fmt.Errorf("the nonce %q has the prefix of the agent's own nonces", r.nonce)
	}
	if err != nil {
		a.relay.isUnchunkable.Store(true)
		return err
	}
	stage := g.writer.finish(r)
	a.mu.Lock()
	a.state.addPending(r, a.epoch, stage)
	a.mu.Unlock()
	a.tracker.recordResponse(r, size)
	return a.envoy.WritePiece(mem.BufferSlice{last})
}

// firstResourceType returns the type URL of the first resource in the beginning of a response, or "" if it is not
// complete.
func firstResourceType(v variant, head []byte) string {
	body, _ := fieldContent(head, responseResources)
	if v == delta {
		body, _ = fieldContent(body, resourceBody)
	}
	typeURL, complete := fieldContent(body, anyType)
	if !complete {
		return ""
	}
	return string(typeURL)
}

// fieldContent returns the content of the first field with the number, as far as it is in b, and whether it is
// complete.
func fieldContent(b []byte, field protowire.Number) (content []byte, complete bool) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, false
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return nil, false
			}
			b = b[n:]
			continue
		}
		length, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, false
		}
		b = b[n:]
		complete = length <= uint64(len(b))
		if number == field {
			return b[:min(length, uint64(len(b)))], complete
		}
		if !complete {
			return nil, false
		}
		b = b[length:]
	}
	return nil, false
}
