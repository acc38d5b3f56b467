package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
)

// labelEscapes are those that the formats know, which are fewer than Go's.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

var reportNames = []string{sourceUp, sourceInvalid, sourceDuplicates}

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
	sc := s.begin(ctx, r, took)
	defer sc.close()
	if err := sc.nothing(); err != nil {
		http.Error(w, fmt.Sprintf("no metrics: %v", err), http.StatusServiceUnavailable)
		return
	}
	format := sc.format(ctx, took/4)
	w.Header().Set("Content-Type", format.ContentType())
	out, finish := compressed(w, r)
	defer finish()
	m := s.merger(out, format)
	sc.write(m)
	m.Reset(io.Discard, format) // what waits for its next use holds nothing of this one
	s.mergers.Put(m)
}

// merger gives one that was used before, if there is: it has its memory, and knows most of what it will read.
func (s *Server) merger(w io.Writer, f exposition.Format) *exposition.Merger {
	m, ok := s.mergers.Get().(*exposition.Merger)
	if !ok {
		return exposition.NewMerger(w, f)
	}
	m.Reset(w, f)
	return m
}

// begin asks all sources at once.
func (s *Server) begin(ctx context.Context, r *http.Request, took time.Duration) *scrape {
	sc := &scrape{Server: s, caller: r.Context(), accepted: exposition.ParseAccept(r.Header.Values("Accept"))}
	end := time.Now().Add(took)
	// What has others behind it leaves them a quarter of the time.
	early := end.Add(-took / 4)
	apps := s.Metrics.Applications
	if address := s.envoyStats(r.URL.RawQuery); address != "" {
		sc.envoy = &source{kind: sourceEnvoy, until: end, limits: exposition.Limits{Families: mostEnvoyFamilies}}
		if len(apps) > 0 {
			sc.envoy.until = early
		}
		s.ask(ctx, sc.envoy, address, acceptText, nil)
	}
	accept := acceptText
	if sc.accepted.OpenMetrics {
		accept = acceptBoth
	}
	for i, app := range apps {
		src := &source{kind: sourceApplication, name: app.Name, until: end, limits: s.applicationLimits()}
		if i > 0 {
			src.until, src.read = early, make(chan struct{})
			src.limits.Bytes = min(src.limits.Bytes, int64(mostSpooled/(len(apps)-1)))
		}
		sc.apps = append(sc.apps, s.ask(ctx, src, app.URL, accept, r.Header))
	}
	sc.agent = &source{kind: sourceAgent}
	sc.own, sc.agent.err = s.gather()
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

// gather gives the agent's metrics as text. What could be gathered beside an error is kept.
func (s *Server) gather() (text []byte, err error) {
	if s.Gatherer == nil {
		return nil, nil
	}
	families, err := s.Gatherer.Gather()
	var buf bytes.Buffer
	encoder := expfmt.NewEncoder(&buf, expfmt.NewFormat(expfmt.TypeTextPlain))
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

// write writes the sources one after the other. While one is written the next ones answer, as far as their sockets have
// room.
func (sc *scrape) write(m *exposition.Merger) {
	m.Reserve(reportNames...)
	copied, err := m.Copy(bytes.NewReader(sc.own), exposition.Source{})
	sc.agent.copied, sc.agent.err = copied, errors.Join(sc.agent.err, err)
	if sc.envoy != nil {
		sc.envoy.copyTo(m, false)
	}
	var spools []*exposition.Spool
	for i, app := range sc.apps {
		if i > 0 {
			spools = append(spools, app.spooled())
		}
	}
	m.Join(spools...)
	if len(sc.apps) > 0 {
		sc.apps[0].copyTo(m, true)
	}
	m.Flush()
	for i, spool := range spools {
		sc.apps[i+1].copied = spool.Result()
	}
	sc.report(m)
	_ = m.Close() // an error is the scraper's, who went away: no source failed
}

func (s *source) copyTo(m *exposition.Merger, rename bool) {
	<-s.answered
	if s.err != nil {
		return
	}
	var text io.Reader = limited{s.body}
	if s.kind == sourceEnvoy {
		text = newBareNames(text)
	}
	s.copied, s.err = m.Copy(text, exposition.Source{Format: s.format, Limits: s.limits, Rename: rename})
}

func (s *source) spooled() *exposition.Spool {
	<-s.read
	if s.err == nil {
		s.err = s.unwhole
	}
	if errors.Is(s.err, context.DeadlineExceeded) {
		s.err = errSlow
	}
	spool, err := exposition.NewSpool(s.text, exposition.Label{Name: targetLabel, Value: s.name},
		exposition.Source{Format: s.format, Limits: exposition.Limits{Families: s.limits.Families}})
	if s.err == nil {
		s.err = err
	}
	return spool
}

// failed counts and logs a source that is not whole, unless it is the scraper that went away.
func (sc *scrape) failed(src *source) {
	if src.err == nil || sc.caller.Err() != nil {
		return
	}
	sc.metrics.failures.WithLabelValues(src.kind).Inc()
	sc.Logger.Debug("a source is missing from the metrics, or a part of it", "source", src.String(), "error", src.err)
}

// report adds to the scrape what became of its sources: the counters of failures tell it only the next time.
func (sc *scrape) report(m *exposition.Merger) {
	var up, invalid, taken bytes.Buffer
	head := func(b *bytes.Buffer, name, help string) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	head(&up, sourceUp, "Whether a source is in this scrape, and whole.")
	head(&invalid, sourceInvalid, "Lines of a source that were left out of this scrape because they are not valid.")
	head(&taken, sourceDuplicates, "Families of a source that were left out of this scrape because another has their name.")
	for _, src := range sc.sources() {
		sc.failed(src)
		labels := fmt.Sprintf(`{source="%s",target="%s"}`, src.kind, labelEscapes.Replace(src.name))
		whole := 1
		if src.err != nil {
			whole = 0
			m.Comment(src.complaint())
		}
		fmt.Fprintf(&up, "%s%s %d\n", sourceUp, labels, whole)
		fmt.Fprintf(&invalid, "%s%s %d\n", sourceInvalid, labels, src.copied.Invalid)
		fmt.Fprintf(&taken, "%s%s %d\n", sourceDuplicates, labels, src.copied.Duplicates)
	}
	m.Release(reportNames...)
	_, _ = m.Copy(io.MultiReader(&up, &invalid, &taken), exposition.Source{})
}

func (s *source) complaint() string {
	text := s.err.Error()
	if len(text) > 300 {
		text = text[:300]
	}
	if s.copied.Families == 0 {
		return fmt.Sprintf("%s is missing: %s", s, text)
	}
	return fmt.Sprintf("%s is not whole: %s", s, text)
}
