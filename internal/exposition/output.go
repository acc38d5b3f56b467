package exposition

import (
	"bytes"
	"io"
)

// mostPut is how much is put together before it is written.
const mostPut = 16 << 10

// output writes in large pieces. What a source has as it is to be written, which is nearly all of most sources, is written
// from where it was read, in one piece as long as it goes on; only the rest is put together.
type output struct {
	to  io.Writer
	err error
	put []byte // what was put together, which goes first
	run []byte // what goes after it, from where it was read
}

// reset begins anew with another writer.
func (o *output) reset(to io.Writer) { o.to, o.err, o.put, o.run = to, nil, o.put[:0], nil }

// pass writes text that stays where it is until settle.
func (o *output) pass(text []byte) {
	n := len(o.run)
	if n > 0 && cap(o.run)-n >= len(text) && &o.run[:n+1][n] == &text[0] {
		o.run = o.run[:n+len(text)]
		return
	}
	o.settle()
	o.run = text
}

// write writes text that changes afterwards. When it is what follows the run where that was read, the run goes on.
func (o *output) write(text []byte) {
	n := len(o.run)
	if n > 0 && cap(o.run)-n >= len(text) && bytes.Equal(o.run[n:n+len(text)], text) {
		o.run = o.run[:n+len(text)]
		return
	}
	o.settle()
	if len(o.put)+len(text) > mostPut {
		o.flush()
	}
	o.put = append(o.put, text...)
}

// settle is for the moment before memory changes from which text was passed.
func (o *output) settle() {
	run := o.run
	o.run = nil
	if len(o.put)+len(run) > mostPut {
		o.flush()
	}
	if len(run) > mostPut {
		o.send(run)
		return
	}
	o.put = append(o.put, run...)
}

// flush writes all that there is. The error is the first there was.
func (o *output) flush() error {
	if len(o.run) > 0 {
		o.settle()
	}
	o.send(o.put)
	o.put = o.put[:0]
	return o.err
}

func (o *output) send(text []byte) {
	if o.err != nil || len(text) == 0 {
		return
	}
	var n int
	if n, o.err = o.to.Write(text); o.err == nil && n < len(text) {
		o.err = io.ErrShortWrite
	}
}
