package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
	"github.com/pilotfish-mesh/pilotfish/internal/processors"
)

// Metrics about the scrape in which they appear. They are not in a registry.
const (
	sourceUp         = "istio_agent_scrape_source_up"
	sourceInvalid    = "istio_agent_scrape_source_invalid_lines"
	sourceDuplicates = "istio_agent_scrape_source_duplicate_families"
	sourceReserved   = "istio_agent_scrape_source_reserved_families"
	sourceRepeated   = "istio_agent_scrape_source_duplicate_series"
)

// bareNames removes the prefix "envoy_" from the mesh's standard metrics (istio_…), so that they have the names that
// dashboards and alerts use.
var bareNames = exposition.Cut{First: "envoy_", Next: "istio_"}

// reservedNames are the prefixes of the metric names of Envoy and the agent. A scraper could not distinguish an
// application's series with such a name from the series of Envoy or the agent.
var reservedNames = []string{"envoy_", "istio_", "pilotfish_"}

// labelEscapes escapes label values as the exposition formats require. strconv.Quote would use escapes that these
// formats do not support.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

var reportNames = []string{sourceUp, sourceInvalid, sourceDuplicates, sourceReserved, sourceRepeated}

// serveMetrics handles a scrape. If a source fails, the response contains the other sources and names the failed one.
// If all sources fail, the response is an error.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.scrapes.Inc()
	timeout := timeoutOf(r)
	ctx, done, ok := s.acquireScrape(w, r, timeout)
	defer done()
	if !ok {
		return
	}
	defer processors.UseAll()() // the sources are read, merged and compressed in parallel
	kit := s.buffers.get()
	sc := s.begin(ctx, r, timeout, kit)
	defer sc.close()
	if err := sc.emptyError(); err != nil {
		s.buffers.put(kit)
		http.Error(w, fmt.Sprintf("no source returned metrics: %v", err), http.StatusServiceUnavailable)
		return
	}
	format := sc.format(ctx, timeout/4)
	w.Header().Set("Content-Type", format.ContentType())
	sc.writeTo(w, r, kit, format)
	s.buffers.put(kit)
}

// acquireScrape waits until a scrape may start. ctx, the context of the scrape, ends after timeout. If no scrape may
// start by then, acquireScrape writes an error response and ok is false. The caller must call done.
func (s *Server) acquireScrape(w http.ResponseWriter, r *http.Request, timeout time.Duration) (ctx context.Context, done func(), ok bool) {
	// The write deadline is later than the scraper's timeout, so that a scrape ends by its timeout and not by a broken
	// connection.
	response := http.NewResponseController(w)
	_ = response.SetWriteDeadline(time.Now().Add(timeout + 10*time.Second))
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	release, ok := s.scrapes.acquire(ctx, r.RemoteAddr, func() {
		cancel()
		_ = response.SetWriteDeadline(time.Now())
	})
	if !ok {
		http.Error(w, "too many concurrent scrapes; retry later", http.StatusServiceUnavailable)
		return ctx, cancel, false
	}
	return ctx, func() { release(); cancel() }, true
}
