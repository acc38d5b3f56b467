package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

const (
	// scrapeTimeout limits a scrape without a timeout header. minScrape and maxScrape limit the timeout that the header
	// requests.
	scrapeTimeout = 5 * time.Second
	minScrape     = 10 * time.Millisecond
	maxScrape     = time.Minute
	// maxScrapes limits the concurrent scrapes; further scrapes wait. Three are enough for two Prometheus replicas and
	// a manual request.
	maxScrapes = 3
	// maxScrapesPerClient limits the concurrent scrapes from one address.
	maxScrapesPerClient = 2

	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
	// targetLabel is the label that distinguishes series of the same name from different applications.
	targetLabel = "scrape_target"
)

// timeoutOf returns nine tenths of the timeout in the scraper's header. The rest remains for sending the response.
func timeoutOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get(timeoutHeader), 64)
	if err != nil || !(seconds > 0) { // also true for NaN
		return scrapeTimeout
	}
	return max(minScrape, time.Duration(min(seconds*0.9, maxScrape.Seconds())*float64(time.Second)))
}

// scrape is one merged scrape: the metrics of the agent, of Envoy, and of the applications, in this order.
type scrape struct {
	*Server
	caller   context.Context
	own      []byte
	agent    *source
	envoy    *source // nil if Envoy is not scraped
	apps     []*source
	accepted exposition.Accepted
	// early is the deadline for a source that is not the last one. A quarter of the scrape's time then remains for the
	// next.
	early time.Time
}

func (sc *scrape) writeTo(w http.ResponseWriter, r *http.Request, kit *scrapeBuffers, format exposition.Format) {
	out, finish := kit.compressed(w, r)
	defer finish() // also after a panic, because finish stops the compressor's goroutine
	sc.write(kit.mergerTo(out, format))
}

// begin sends the requests to all sources. Envoy's is the last.
func (s *Server) begin(ctx context.Context, r *http.Request, timeout time.Duration, kit *scrapeBuffers) *scrape {
	end := time.Now().Add(timeout)
	sc := &scrape{Server: s, caller: r.Context(), accepted: exposition.ParseAccept(r.Header.Values("Accept")), early: end.Add(-timeout / 4)}
	apps := s.Metrics.Applications
	accept := acceptText
	if sc.accepted.OpenMetrics {
		accept = acceptBoth
	}
	for i, app := range apps {
		src := &source{kind: sourceApplication, name: app.Name, until: end, limits: s.applicationLimits(), reserved: s.reservedNames()}
		if i > 0 {
			src.until, src.read = sc.early, make(chan struct{})
			src.limits.Bytes = min(src.limits.Bytes, int64(maxSpooled/(len(apps)-1)))
		}
		sc.apps = append(sc.apps, s.startRequest(ctx, src, app.URL, accept, r.Header))
	}
	checked := s.startReadinessChecks()
	if address := s.envoyStats(r.URL.RawQuery); address != "" && !s.Metrics.WithoutEnvoy {
		sc.envoy = &source{kind: sourceEnvoy, until: end, limits: exposition.Limits{Families: maxEnvoyFamilies}, hidden: s.Metrics.HiddenSuffixes}
		s.requestAhead(ctx, sc.envoy, address, acceptText)
	}
	sc.agent = &source{kind: sourceAgent}
	sc.own, sc.agent.err = s.gather(&kit.own)
	<-checked // does not block: gather has already waited for the readiness checks
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

func (s *Server) reservedNames() []string {
	if s.Metrics.AllowReservedNames {
		return nil
	}
	return reservedNames
}

func (s *Server) applicationLimits() exposition.Limits {
	limits := exposition.Limits{Bytes: s.Metrics.MaxApplicationBytes, Families: maxApplicationFamilies}
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

// gather returns the agent's metrics as text, stored in buf. If it returns an error, the text contains the metrics that
// could be gathered.
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

// emptyError returns an error if no source has metrics.
func (sc *scrape) emptyError() error {
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
		sc.recordFailure(src)
	}
	return errors.Join(why...)
}

// format returns the response's format. It is OpenMetrics if the scraper accepts only OpenMetrics, or if it accepts
// both formats and all applications that respond in time send OpenMetrics. Metrics in another format are converted.
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
