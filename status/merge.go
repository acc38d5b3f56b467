package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

const (
	// scrapeTimeout bounds a scrape when the scraper does not say how long it waits, the others when it does.
	scrapeTimeout  = 5 * time.Second
	shortestScrape = 10 * time.Millisecond
	longestScrape  = time.Minute
	// mostScrapes are answered at a time; others wait for their turn. Two replicas of Prometheus and a person do not notice.
	mostScrapes = 3
	// mostOfOne are those of one address.
	mostOfOne = 2

	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
	// targetLabel tells apart what several applications have under one name.
	targetLabel = "scrape_target"
)

// Metrics of a scrape about itself, which are in no registry.
const (
	sourceUp         = "istio_agent_scrape_source_up"
	sourceInvalid    = "istio_agent_scrape_source_invalid_lines"
	sourceDuplicates = "istio_agent_scrape_source_duplicate_families"
	sourceRepeated   = "istio_agent_scrape_source_duplicate_series"
)

// bareNames gives the mesh's standard metrics the names that dashboards, alerts and Istio's own proxies know them by: without
// what Envoy puts before all that it counts.
var bareNames = exposition.Cut{First: "envoy_", Next: "istio_"}

// labelEscapes are those that the formats know, which are fewer than Go's.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

var reportNames = []string{sourceUp, sourceInvalid, sourceDuplicates, sourceRepeated}

// timeoutOf leaves a tenth of what the scraper waits for the way back.
func timeoutOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get(timeoutHeader), 64)
	if err != nil || !(seconds > 0) { // NaN is not greater than 0 either
		return scrapeTimeout
	}
	return max(shortestScrape, time.Duration(min(seconds*0.9, longestScrape.Seconds())*float64(time.Second)))
}

// scrape is one merged scrape: the agent's own metrics, Envoy's, and those of the applications, in this order.
type scrape struct {
	*Server
	caller   context.Context
	own      []byte
	agent    *source
	envoy    *source // nil for none
	apps     []*source
	accepted exposition.Accepted
	// early is when a source has to end that has others behind it: it leaves them a quarter of the time.
	early time.Time
}

// serveMetrics answers a scrape. A source that fails costs its own part only, and is named; when there is nothing left the
// scrape is an error.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.scrapes.Inc()
	took := timeoutOf(r)
	// More than the scraper waits: what it does not take by then it does not want.
	response := http.NewResponseController(w)
	_ = response.SetWriteDeadline(time.Now().Add(took + 10*time.Second))
	ctx, cancel := context.WithTimeout(r.Context(), took)
	defer cancel()
	done, ok := s.scrapes.take(ctx, r.RemoteAddr, func() {
		cancel()
		_ = response.SetWriteDeadline(time.Now())
	})
	if !ok {
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	defer done()
	kit := s.kits.take()
	sc := s.begin(ctx, r, took, kit)
	defer sc.close()
	if err := sc.nothing(); err != nil {
		s.kits.leave(kit)
		http.Error(w, fmt.Sprintf("no metrics: %v", err), http.StatusServiceUnavailable)
		return
	}
	format := sc.format(ctx, took/4)
	w.Header().Set("Content-Type", format.ContentType())
	sc.writeTo(w, r, kit, format)
	s.kits.leave(kit)
	if s.Scraped != nil {
		s.Scraped()
	}
}

func (sc *scrape) writeTo(w http.ResponseWriter, r *http.Request, kit *kit, format exposition.Format) {
	out, finish := kit.compressed(w, r)
	defer finish() // also after a panic: nobody else ends what compresses besides
	sc.write(kit.mergerTo(out, format))
}

// begin asks all sources, Envoy last.
func (s *Server) begin(ctx context.Context, r *http.Request, took time.Duration, kit *kit) *scrape {
	end := time.Now().Add(took)
	sc := &scrape{Server: s, caller: r.Context(), accepted: exposition.ParseAccept(r.Header.Values("Accept")), early: end.Add(-took / 4)}
	apps := s.Metrics.Applications
	accept := acceptText
	if sc.accepted.OpenMetrics {
		accept = acceptBoth
	}
	for i, app := range apps {
		src := &source{kind: sourceApplication, name: app.Name, until: end, limits: s.applicationLimits()}
		if i > 0 {
			src.until, src.read = sc.early, make(chan struct{})
			src.limits.Bytes = min(src.limits.Bytes, int64(mostSpooled/(len(apps)-1)))
		}
		sc.apps = append(sc.apps, s.ask(ctx, src, app.URL, accept, r.Header))
	}
	foreseen := s.foresee()
	if address := s.envoyStats(r.URL.RawQuery); address != "" {
		sc.envoy = &source{kind: sourceEnvoy, until: end, limits: exposition.Limits{Families: mostEnvoyFamilies}}
		s.askAhead(ctx, sc.envoy, address, acceptText)
	}
	sc.agent = &source{kind: sourceAgent}
	sc.own, sc.agent.err = s.gather(&kit.own)
	<-foreseen // which gathering has waited for, too
	return sc
}

func (s *Server) envoyStats(query string) string {
	if s.Metrics.Envoy == nil {
		return ""
	}
	address := s.Metrics.Envoy()
	if address != "" && query != "" {
		address += "?" + query
	}
	return address
}

func (s *Server) applicationLimits() exposition.Limits {
	limits := exposition.Limits{Bytes: s.Metrics.MaxApplicationBytes, Families: mostApplicationFamilies}
	if limits.Bytes <= 0 {
		limits.Bytes = defaultApplicationBytes
	}
	return limits
}

func (sc *scrape) sources() []*source {
	all := []*source{sc.agent}
	if sc.envoy != nil {
		all = append(all, sc.envoy)
	}
	return append(all, sc.apps...)
}

func (sc *scrape) close() {
	for _, src := range sc.sources() {
		if src.stop != nil {
			src.close()
		}
	}
}

// gather gives the agent's metrics as text, in a buffer. What could be gathered beside an error is kept.
func (s *Server) gather(buf *bytes.Buffer) (text []byte, err error) {
	if s.Gatherer == nil {
		return nil, nil
	}
	families, err := s.Gatherer.Gather()
	buf.Reset()
	encoder := expfmt.NewEncoder(buf, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		err = errors.Join(err, encoder.Encode(f))
	}
	return buf.Bytes(), err
}

// nothing is why there is nothing at all to answer with.
func (sc *scrape) nothing() error {
	if len(sc.own) > 0 || sc.agent.err == nil {
		return nil
	}
	why := []error{sc.agent.err}
	for _, src := range sc.sources()[1:] {
		<-src.answered
		if src.err == nil {
			return nil
		}
		why = append(why, fmt.Errorf("%s: %w", src, src.err))
	}
	for _, src := range sc.sources() {
		sc.failed(src)
	}
	return errors.Join(why...)
}

// format is OpenMetrics when the scraper takes nothing else, or when it takes both and all applications that answer in
// time speak it. What the others have is transcoded.
func (sc *scrape) format(ctx context.Context, wait time.Duration) exposition.Format {
	if !sc.accepted.Text || !sc.accepted.OpenMetrics {
		if sc.accepted.OpenMetrics {
			return exposition.OpenMetrics
		}
		return exposition.Text
	}
	over, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	found := exposition.Text
	for _, app := range sc.apps {
		select {
		case <-app.answered:
		case <-over.Done():
			continue
		}
		if app.err != nil {
			continue
		}
		if app.format == exposition.Text {
			return exposition.Text
		}
		found = exposition.OpenMetrics
	}
	return found
}
