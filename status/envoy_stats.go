package status

import (
	"fmt"
	"io"
	"net/http"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
	"github.com/pilotfish-mesh/pilotfish/internal/processors"
)

// envoyStatsPath is the path to which Envoy's Prometheus ports forward scrapes.
const envoyStatsPath = "/stats/envoy"

// serveEnvoyStats serves the statistics of Envoy alone, for Envoy's Prometheus ports. It changes only packed labels
// (see exposition.PackedPrefix).
func (s *Server) serveEnvoyStats(w http.ResponseWriter, r *http.Request) {
	address := s.envoyStats(r.URL.RawQuery)
	if address == "" {
		http.Error(w, "no statistics: Envoy is not running", http.StatusServiceUnavailable)
		return
	}
	ctx, done, ok := s.acquireScrape(w, r, timeoutOf(r))
	defer done()
	if !ok {
		return
	}
	defer processors.UseAll()() // the statistics are read and copied in parallel
	body, format, err := s.request(ctx, address, acceptText, r.Header)
	if err != nil {
		http.Error(w, fmt.Sprintf("cannot read Envoy's statistics: %v", err), http.StatusServiceUnavailable)
		return
	}
	defer body.Close()
	if err := s.copyEnvoyStats(w, r, body, format); err != nil {
		// Without this, the client would accept an incomplete response as complete.
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) copyEnvoyStats(w http.ResponseWriter, r *http.Request, body io.Reader, format exposition.Format) error {
	kit := s.buffers.get()
	defer s.buffers.put(kit)
	w.Header().Set("Content-Type", exposition.Text.ContentType())
	out, finish := kit.compressed(w, r)
	defer finish()
	m := kit.mergerTo(out, exposition.Text)
	_, err := m.Copy(body, exposition.Source{Format: format, Limits: exposition.Limits{Families: maxEnvoyFamilies}, Unpack: true})
	if closeErr := m.Close(); err == nil {
		err = closeErr
	}
	return err
}
