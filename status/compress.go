package status

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// compressed gives the writer for an answer, through gzip if the caller takes that, and what to call when all is written.
func compressed(w http.ResponseWriter, r *http.Request) (io.Writer, func()) {
	w.Header().Add("Vary", "Accept-Encoding")
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	return z, func() { _ = z.Close() }
}
