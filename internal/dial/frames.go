package dial

import "golang.org/x/net/http2"

// What a frame of HTTP/2 begins with: its length in 3 bytes, its type, its flags, and its stream in 4.
const (
	frameHeader = 9
	frameType   = 3
	frameFlags  = 4
)

// frameEnds follows what a client writes of HTTP/2 to know where a frame ends: nothing else may be sent in the middle of one.
type frameEnds struct {
	begun  bool // the preface is being written, or is
	rest   int  // of the frame, or of the preface
	header [frameHeader]byte
	have   int  // bytes of the header
	frames bool // there was one, as the first has to be the settings
	open   bool // more of a header is to come in the next frame, and nothing else before it
}

// see follows what was written.
func (f *frameEnds) see(b []byte) {
	if !f.begun {
		f.begun, f.rest = true, len(http2.ClientPreface)
	}
	for len(b) > 0 {
		if f.rest > 0 {
			n := min(f.rest, len(b))
			b, f.rest = b[n:], f.rest-n
			continue
		}
		n := copy(f.header[f.have:], b)
		b, f.have = b[n:], f.have+n
		if f.have == frameHeader {
			f.enter()
		}
	}
}

// enter reads a header that is complete.
func (f *frameEnds) enter() {
	h := f.header
	f.rest, f.have, f.frames = int(h[0])<<16|int(h[1])<<8|int(h[2]), 0, true
	switch http2.FrameType(h[frameType]) {
	case http2.FrameHeaders, http2.FrameContinuation:
		f.open = http2.Flags(h[frameFlags])&http2.FlagHeadersEndHeaders == 0
	}
}

// between says whether another frame may begin.
func (f *frameEnds) between() bool { return f.frames && !f.open && f.rest == 0 && f.have == 0 }
