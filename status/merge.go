package status

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
)

const (
	// scrapeTimeout bounds a scrape of Envoy when the scraper does not say how long it waits, longestScrape when it does.
	scrapeTimeout = 5 * time.Second
	longestScrape = longestAnswer - 5*time.Second
	longestSample = 1 << 20
)

func newScraper() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     60 * time.Second,
		DisableCompression:  true,
	}}
}

// serveMetrics writes the agent's metrics, then Envoy's, in Prometheus's text format. A source that fails is left out and
// counted; only when nothing is left is the scrape an error.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.scrapes.Inc()
	ctx, cancel := context.WithTimeout(r.Context(), timeoutOf(r))
	defer cancel()
	fromEnvoy, err := s.openEnvoy(ctx, r.URL.RawQuery)
	s.failed(sourceEnvoy, err)
	if fromEnvoy != nil {
		defer func() { _ = fromEnvoy.Close() }()
	}
	own, names, gatherErr := s.gather()
	s.failed(sourceAgent, gatherErr)
	if own == nil && fromEnvoy == nil && errors.Join(err, gatherErr) != nil {
		http.Error(w, fmt.Sprintf("no metrics: %v", errors.Join(gatherErr, err)), http.StatusServiceUnavailable)
		return
	}
	out, finish := compressed(w, r)
	defer finish()
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	if _, err := out.Write(own); err != nil || fromEnvoy == nil {
		return
	}
	s.failed(sourceEnvoy, copyFamilies(out, fromEnvoy, names))
}

func (s *Server) failed(source string, err error) {
	if err == nil {
		return
	}
	s.metrics.failures.WithLabelValues(source).Inc()
	s.Logger.Debug("a source is missing from the metrics", "source", source, "error", err)
}

// timeoutOf leaves a tenth of what the scraper waits for the way back.
func timeoutOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0) { // NaN is not greater than 0 either
		return scrapeTimeout
	}
	return time.Duration(min(seconds*0.9, longestScrape.Seconds()) * float64(time.Second))
}

// gather gives the agent's metrics as text, and the names that are taken. What could be gathered beside an error is kept.
func (s *Server) gather() (text []byte, names map[string]bool, err error) {
	if s.Gatherer == nil {
		return nil, nil, nil
	}
	families, err := s.Gatherer.Gather()
	var buf bytes.Buffer
	names = make(map[string]bool, len(families))
	encoder := expfmt.NewEncoder(&buf, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		names[f.GetName()] = true
		err = errors.Join(err, encoder.Encode(f))
	}
	return buf.Bytes(), names, err
}

// openEnvoy asks Envoy for its metrics, with the caller's query (usedonly, filter).
func (s *Server) openEnvoy(ctx context.Context, query string) (io.ReadCloser, error) {
	if s.EnvoyStatsURL == "" {
		return nil, nil
	}
	target, err := url.Parse(s.EnvoyStatsURL)
	if err != nil {
		return nil, fmt.Errorf("the address of Envoy's metrics: %w", err)
	}
	target.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for its metrics: %w", err)
	}
	resp, err := s.scraper.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for its metrics: %w", err)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != "text/plain" {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("asking %s for Envoy's metrics: the answer was %s, %q", s.EnvoyStatsURL, resp.Status, kind)
	}
	return resp.Body, nil
}

// copyFamilies copies metrics line by line, so that a source that breaks off leaves no half line behind, without the
// families whose names are taken: a name that appears twice makes the whole scrape invalid. It holds one line in memory.
func copyFamilies(w io.Writer, r io.Reader, taken map[string]bool) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 16<<10), longestSample)
	in.Split(wholeLines)
	out := bufio.NewWriterSize(w, 16<<10)
	skipping := false
	for in.Scan() {
		line := in.Text()
		if name, ok := familyOf(line); ok {
			skipping = taken[name]
		} else if skipping && strings.HasPrefix(line, "#") {
			skipping = false
		}
		if skipping || strings.HasPrefix(line, "# EOF") {
			continue
		}
		_, _ = out.WriteString(line)
		_ = out.WriteByte('\n')
	}
	if err := in.Err(); err != nil {
		_ = out.Flush()
		return fmt.Errorf("reading Envoy's metrics: %w", err)
	}
	_ = out.Flush() // an error is the scraper's, who went away: no source failed
	return nil
}

// familyOf reads the name from "# TYPE name type" and "# HELP name text".
func familyOf(line string) (string, bool) {
	rest, ok := strings.CutPrefix(line, "# TYPE ")
	if !ok {
		if rest, ok = strings.CutPrefix(line, "# HELP "); !ok {
			return "", false
		}
	}
	name, _, _ := strings.Cut(rest, " ")
	return name, true
}

// wholeLines splits into lines. A last line without its end is dropped: nobody can tell whether it is whole.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}
