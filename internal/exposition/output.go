package exposition

import "io"

// maxPut is the size of the write buffer. The buffer combines many small pieces, because a family of Envoy has only a
// few kilobytes.
const maxPut = 64 << 10

// output is a buffered writer.
type output struct {
	to  io.Writer
	err error
	put []byte
}

// reset prepares the output for another writer.
func (o *output) reset(to io.Writer) { o.to, o.err, o.put = to, nil, o.put[:0] }

func (o *output) write(text []byte) {
	if o.put == nil {
		o.put = make([]byte, 0, maxPut)
	}
	for len(text) > 0 {
		n := min(len(text), maxPut-len(o.put))
		o.put = append(o.put, text[:n]...)
		text = text[n:]
		if len(o.put) == maxPut {
			o.flush()
		}
	}
}

// flush writes and empties the buffer. It returns the first error of the writer, after which it writes nothing.
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
