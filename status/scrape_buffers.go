package status

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// scrapeBuffers are the buffers of a scrape. Later scrapes reuse them, because new buffers for each scrape would be
// most of the agent's garbage.
type scrapeBuffers struct {
	merger *exposition.Merger
	own    bytes.Buffer // the agent's metrics
	gzip   *gzip.Writer // 800 KB; nil until it is needed
}

// scrapeBufferPool stores the buffers of finished scrapes until the garbage collector frees them.
type scrapeBufferPool struct{ pool sync.Pool }

func (p *scrapeBufferPool) get() *scrapeBuffers {
	if b, ok := p.pool.Get().(*scrapeBuffers); ok {
		return b
	}
	return &scrapeBuffers{merger: exposition.NewMerger(io.Discard, exposition.Text)}
}

// put stores the buffers after a successful scrape, without their content.
func (p *scrapeBufferPool) put(used *scrapeBuffers) {
	used.merger.Reset(io.Discard, exposition.Text)
	p.pool.Put(used)
}

func (k *scrapeBuffers) mergerTo(w io.Writer, f exposition.Format) *exposition.Merger {
	k.merger.Reset(w, f)
	return k.merger
}

// compressed returns the writer for the response's body. It uses gzip if the client accepts it. The returned function
// must be called after the last write.
func (k *scrapeBuffers) compressed(w http.ResponseWriter, r *http.Request) (io.Writer, func()) {
	w.Header().Add("Vary", "Accept-Encoding")
	if !accepts(r.Header.Values("Accept-Encoding"), "gzip") {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := k.compressor()
	z.Reset(w)
	out, finish := asyncWriter(z)
	return out, func() {
		finish()
		z.Reset(io.Discard)
	}
}

func (k *scrapeBuffers) compressor() *gzip.Writer {
	if k.gzip == nil {
		// Metrics compress well at any level, and BestSpeed uses the least time and memory. The standard library's gzip
		// is half as fast.
		z, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
		if err != nil { // the level is a constant
			panic(err)
		}
		k.gzip = z
	}
	return k.gzip
}
