package status

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// kit is what a scrape works with. It is left to the next one: made anew each time it would be most of a scrape's garbage.
type kit struct {
	merger *exposition.Merger
	own    bytes.Buffer // the agent's metrics
	gzip   *gzip.Writer // 800 KB; nil until it is needed
}

// kits keeps one kit. Scrapes at the same time have others, which are not kept.
type kits struct {
	mu   sync.Mutex
	kept *kit
}

func (k *kits) take() *kit {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := k.kept
	k.kept = nil
	if taken == nil {
		return &kit{merger: exposition.NewMerger(io.Discard, exposition.Text)}
	}
	return taken
}

// leave keeps a kit that was used without fail. It holds nothing of that use.
func (k *kits) leave(used *kit) {
	used.merger.Reset(io.Discard, exposition.Text)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = used
}

// Rest gives up what scrapes use again and what is quickly made anew.
func (s *Server) Rest() {
	s.kits.mu.Lock()
	defer s.kits.mu.Unlock()
	if kept := s.kits.kept; kept != nil {
		kept.merger.Rest()
		kept.own, kept.gzip = bytes.Buffer{}, nil
	}
}

func (k *kit) mergerTo(w io.Writer, f exposition.Format) *exposition.Merger {
	k.merger.Reset(w, f)
	return k.merger
}

// compressed gives the writer for an answer, through gzip if the caller takes that, and what to call when all is written.
func (k *kit) compressed(w http.ResponseWriter, r *http.Request) (io.Writer, func()) {
	w.Header().Add("Vary", "Accept-Encoding")
	if !accepts(r.Header.Values("Accept-Encoding"), "gzip") {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := k.compressor()
	z.Reset(w)
	out, finish := besides(z)
	return out, func() {
		finish()
		z.Reset(io.Discard)
	}
}

func (k *kit) compressor() *gzip.Writer {
	if k.gzip == nil {
		// Metrics compress well at any level, and this one takes the least time and memory. The standard library takes twice
		// as long for the same.
		z, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
		if err != nil { // the level is a constant
			panic(err)
		}
		k.gzip = z
	}
	return k.gzip
}
