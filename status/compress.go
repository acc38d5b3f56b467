package status

import (
	"compress/gzip"
	"io"
	"net/http"
	"sync"
)

// compressors were used before: each has 800 KB.
var compressors = sync.Pool{New: func() any {
	// Metrics compress well at any level, and the usual one takes four times as long. Level 1 is no faster than this one,
	// and needs more memory.
	z, err := gzip.NewWriterLevel(io.Discard, 2)
	if err != nil { // the level is a constant
		panic(err)
	}
	return z
}}

// compressed gives the writer for an answer, through gzip if the caller takes that, and what to call when all is written.
func compressed(w http.ResponseWriter, r *http.Request) (io.Writer, func()) {
	w.Header().Add("Vary", "Accept-Encoding")
	if !accepts(r.Header.Values("Accept-Encoding"), "gzip") {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := compressors.Get().(*gzip.Writer)
	z.Reset(w)
	out, finish := besides(z)
	return out, func() {
		finish()
		z.Reset(io.Discard)
		compressors.Put(z)
	}
}

// besides has another goroutine write, so that making the next piece and writing the last one share the processors.
func besides(to io.WriteCloser) (io.Writer, func()) {
	from, into := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(to, from)
		_ = from.CloseWithError(err)
		_ = to.Close()
	}()
	return into, func() {
		_ = into.Close()
		<-done
	}
}
