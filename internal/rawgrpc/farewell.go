package rawgrpc

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
)

// farewell bounds how long a peer is waited for that is told why the connection ends.
const farewell = 100 * time.Millisecond

// sayWhy tells a peer that does not keep to the protocol why the connection ends: whoever looks into it sees that there
// first. It waits until all is written that was to be, but not for long.
func (l *link) sayWhy(err error) {
	code, ok := fault(err)
	if !ok {
		return
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(farewell))
	l.mu.Lock()
	defer l.mu.Unlock()
	reason := err.Error()
	payload := binary.BigEndian.AppendUint32(nil, l.side.lastTaken())
	payload = append(binary.BigEndian.AppendUint32(payload, uint32(code)), reason[:min(len(reason), 256)]...)
	l.out = append(l.out, frameOf(http2.FrameGoAway, 0, 0, payload)...)
	l.flush()
	for l.writing && l.err == nil {
		l.moved.Wait()
	}
}

// fault is what HTTP/2 calls a fault of the peer's, if it is one.
func fault(err error) (code http2.ErrCode, ok bool) {
	var broken http2.ConnectionError
	switch {
	case errors.As(err, &broken):
		return http2.ErrCode(broken), true
	case errors.Is(err, http2.ErrFrameTooLarge):
		return http2.ErrCodeFrameSize, true
	case errors.Is(err, errFlow):
		return http2.ErrCodeFlowControl, true
	case errors.Is(err, errNotHTTP2):
		return http2.ErrCodeProtocol, true
	}
	return 0, false
}
