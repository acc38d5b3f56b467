package xdsproxy

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// flowFrom is the size from which a response goes on to Envoy while it still arrives, and flowAfter how much of it has to be
// there at first. A smaller one is there so soon that it is not worth the risk: a control plane that dies in the middle of a
// response costs Envoy its stream, if a part of the response is there already.
const (
	flowFrom  = 2 << 20
	flowAfter = 1 << 20
)

// carry receives the rest of a response that was begun, and sees it to where it belongs.
func (a *ascent) carry() error {
	f := new(frame)
	if a.upstream.Missing() >= flowFrom && a.mayFlow() {
		typeURL, err := a.begin(f)
		if err != nil {
			return err
		}
		if typeURL != "" {
			a.note()
			return a.flow(f.data, typeURL)
		}
	}
	var err error
	if f.data, err = a.upstream.Rest(f.data); err != nil {
		return err
	}
	a.note()
	if f.data.Len() >= flowFrom {
		a.relay.broken.Store(false)
	}
	if err := a.take(f, a.upstream.Ready()); err != nil {
		a.cancel(fmt.Errorf("sending to Envoy: %w", err))
		return err
	}
	return nil
}

// note notes that something was heard of the control plane.
func (a *ascent) note() {
	a.heard.Store(int64(uptime()))
	if !a.answered.Swap(true) {
		a.book.connected(a.lease.address)
	}
}

// mayFlow says whether a response may go on in parts: not when the last that did was not completed, nor while somebody
// listens who is to see it whole, nor where Envoy is served from the last good configuration meanwhile, nor where the nonce is
// to be another, which would make another size.
func (a *ascent) mayFlow() bool {
	if a.relay.broken.Load() || a.relay.unfit.Load() || a.relay.taps.any.Load() || a.epoch != 1 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keeping.snapshot == nil
}

// begin receives the beginning of a response, and reads of which type it is; empty if it is not to flow.
func (a *ascent) begin(f *frame) (typeURL string, err error) {
	for got := 0; got < flowAfter; {
		piece, err := a.upstream.Piece()
		if err != nil {
			f.free()
			return "", err
		}
		f.data = append(f.data, piece)
		got += piece.Len()
	}
	typeURL = firstType(a.proto, f.data[0].ReadOnlyData())
	_, local := a.relay.locals[typeURL]
	_, rewritten := a.relay.config.Rewrite[typeURL]
	if local || rewritten {
		return "", nil
	}
	return typeURL, nil
}

var errHalf = errors.New("a response was not completed of which Envoy had a part")

// flow passes on what is there of a response, and what comes while it comes, all but the end: that goes when the whole was
// read and booked, as with any other response. If it never comes to that, Envoy's stream is ended in the middle of the
// message, and Envoy asks anew. What is there is flow's to free.
func (a *ascent) flow(there mem.BufferSlice, typeURL string) error {
	a.delivering.Lock()
	defer a.delivering.Unlock()
	if err := a.ctx.Err(); err != nil { // and nothing of it has gone to Envoy yet
		there.Free()
		return err
	}
	size := there.Len() + a.upstream.Missing()
	g := &gathering{proto: a.proto, keeping: a.beginFlow(typeURL)}
	defer g.free()
	last, err := a.pour(there, size, g)
	if err == nil {
		err = a.complete(last, size, typeURL, g)
	}
	if err != nil {
		a.relay.broken.Store(true)
		g.keeping.abandon()
		a.cancel(fmt.Errorf("%w: %w", errHalf, err))
	}
	return err
}

// pour sends all but the last piece of a response, which it gives, and gathers what is to be known of the rest.
func (a *ascent) pour(there mem.BufferSlice, size int, g *gathering) (last mem.Buffer, err error) {
	if err := a.envoy.Begin(size); err != nil {
		there.Free()
		return nil, err
	}
	for {
		for len(there) > 0 && (len(there) > 1 || a.upstream.Missing() > 0) {
			if err := a.envoy.Continue(there[:1]); err != nil {
				there.Free()
				return nil, err
			}
			g.add(there[0])
			there = there[1:]
		}
		if a.upstream.Missing() == 0 {
			return there[0], nil
		}
		piece, err := a.upstream.Piece()
		if err != nil {
			there.Free()
			return nil, err
		}
		a.note()
		there = append(there[:0:0], piece)
	}
}

// complete books a response and sends the end of it.
func (a *ascent) complete(last mem.Buffer, size int, typeURL string, g *gathering) error {
	last.Ref()
	defer last.Free()
	r, err := g.end(last)
	switch {
	case err != nil:
		err = fmt.Errorf("reading the response: %w", err)
	case r.typeURL != typeURL:
		err = fmt.Errorf("the response is of the type %q and has resources of the type %q", r.typeURL, typeURL)
	case joinNonce(a.epoch, r.nonce) != r.nonce:
		err = fmt.Errorf("the nonce %q is one that only the agent gives", r.nonce)
	}
	if err != nil {
		a.relay.unfit.Store(true)
		return err
	}
	stage := g.keeping.end(r)
	a.mu.Lock()
	a.state.sent(r, a.epoch, stage)
	a.mu.Unlock()
	a.book.response(r, size)
	return a.envoy.Continue(mem.BufferSlice{last})
}

// firstType is the type of the first resource of a response of which there is only the beginning; empty if it is not known.
func firstType(v variant, head []byte) string {
	body, _ := within(head, responseResources)
	if v == delta {
		body, _ = within(body, resourceBody)
	}
	typeURL, whole := within(body, anyType)
	if !whole {
		return ""
	}
	return string(typeURL)
}

// within is the content of the first field of that number, as far as it is there.
func within(b []byte, field protowire.Number) (content []byte, whole bool) {
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
		whole = length <= uint64(len(b))
		if number == field {
			return b[:min(length, uint64(len(b)))], whole
		}
		if !whole {
			return nil, false
		}
		b = b[length:]
	}
	return nil, false
}
