package rawgrpc

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
)

// goAwayTimeout limits the wait until GOAWAY is written.
const goAwayTimeout = 100 * time.Millisecond

// sendGoAway sends GOAWAY with the reason after a protocol error of the peer. It waits until all queued frames are
// written, or for goAwayTimeout.
func (l *rawConn) sendGoAway(err error) {
	code, ok := errorCode(err)
	if !ok {
		return
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(goAwayTimeout))
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

// errorCode returns the HTTP/2 error code of a protocol error; ok is false for other errors.
func errorCode(err error) (code http2.ErrCode, ok bool) {
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
