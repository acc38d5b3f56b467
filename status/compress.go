package status

import (
	"cmp"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// compressed gives the writer for an answer, through gzip if the caller takes that, and what to call when all is written.
func compressed(w http.ResponseWriter, r *http.Request) (io.Writer, func()) {
	w.Header().Add("Vary", "Accept-Encoding")
	if !takesGzip(r.Header.Values("Accept-Encoding")) {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	// Metrics compress well at any level, and the usual one takes four times as long. Level 1 is no faster than this one,
	// and needs more memory.
	z, err := gzip.NewWriterLevel(w, 2)
	if err != nil { // the level is a constant
		panic(err)
	}
	return besides(z)
}

// takesGzip reads the Accept-Encoding headers. A quality of nought is a refusal.
func takesGzip(headers []string) bool {
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			name, parameters, err := mime.ParseMediaType(item)
			if err != nil || name != "gzip" {
				continue
			}
			q, err := strconv.ParseFloat(cmp.Or(parameters["q"], "1"), 64)
			return err == nil && q > 0
		}
	}
	return false
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
