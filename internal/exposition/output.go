package exposition

import "io"

// mostPut is how much is put together before it is written. Sources have much in small pieces: what Envoy says of one
// statistic is some kilobytes, with a text of the merger's before it.
const mostPut = 64 << 10

// output writes in large pieces.
type output struct {
	to  io.Writer
	err error
	put []byte
}

// reset begins anew with another writer.
func (o *output) reset(to io.Writer) { o.to, o.err, o.put = to, nil, o.put[:0] }

func (o *output) write(text []byte) {
	if o.put == nil {
		o.put = make([]byte, 0, mostPut)
	}
	for len(text) > 0 {
		n := min(len(text), mostPut-len(o.put))
		o.put = append(o.put, text[:n]...)
		text = text[n:]
		if len(o.put) == mostPut {
			o.flush()
		}
	}
}

// flush writes all that there is. The error is the first there was.
func (o *output) flush() error {
	if o.err == nil && len(o.put) > 0 {
		var n int
		if n, o.err = o.to.Write(o.put); o.err == nil && n < len(o.put) {
			o.err = io.ErrShortWrite
		}
	}
	o.put = o.put[:0]
	return o.err
}
