package dial

import "golang.org/x/net/http2"

// The header of an HTTP/2 frame: 3 bytes length, type, flags, and 4 bytes stream id (RFC 9113, section 4.1).
const (
	frameHeaderLen = 9
	frameType      = 3
	frameFlags     = 4
)

// frameTracker follows the HTTP/2 bytes that a client writes, and finds the positions at which another frame can be
// inserted.
type frameTracker struct {
	started     bool // the first byte was written; the connection starts with the preface
	remaining   int  // bytes until the end of the frame or of the preface
	header      [frameHeaderLen]byte
	headerLen   int  // bytes of header that were written
	sawFrame    bool // a frame header was written; the first frame must be SETTINGS
	headersOpen bool // the header block continues in the next frame; no other frame may be sent before it
}

// track processes bytes that were written.
func (f *frameTracker) track(b []byte) {
	if !f.started {
		f.started, f.remaining = true, len(http2.ClientPreface)
	}
	for len(b) > 0 {
		if f.remaining > 0 {
			n := min(f.remaining, len(b))
			b, f.remaining = b[n:], f.remaining-n
			continue
		}
		n := copy(f.header[f.headerLen:], b)
		b, f.headerLen = b[n:], f.headerLen+n
		if f.headerLen == frameHeaderLen {
			f.parseHeader()
		}
	}
}

// parseHeader reads the complete header.
func (f *frameTracker) parseHeader() {
	h := f.header
	f.remaining, f.headerLen, f.sawFrame = int(h[0])<<16|int(h[1])<<8|int(h[2]), 0, true
	switch http2.FrameType(h[frameType]) {
	case http2.FrameHeaders, http2.FrameContinuation:
		f.headersOpen = http2.Flags(h[frameFlags])&http2.FlagHeadersEndHeaders == 0
	}
}

// isAtBoundary reports whether another frame may be sent now.
func (f *frameTracker) isAtBoundary() bool {
	return f.sawFrame && !f.headersOpen && f.remaining == 0 && f.headerLen == 0
}
