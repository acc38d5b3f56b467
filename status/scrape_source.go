package status

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// Metrics configures the sources of /metrics in addition to the agent's own metrics.
type Metrics struct {
	// Envoy returns the URL of Envoy's Prometheus statistics, such as "http://127.0.0.1:15000/stats/prometheus". It is
	// called for each scrape, because the address may change when Envoy restarts. It returns "" while Envoy is not
	// running. If the function is nil, Envoy is never scraped.
	Envoy func() string
	// HiddenSuffixes are the suffixes of the names of Envoy's metric families that scrapes omit.
	HiddenSuffixes []string
	// WithoutEnvoy omits Envoy's statistics from /metrics.
	WithoutEnvoy bool
	// Applications are the targets in the pod. The series of the first target are unchanged. The series of further
	// targets have the additional label scrape_target.
	Applications []Application
	// MaxApplicationBytes limits the response of an application; 0 means 64 MiB.
	MaxApplicationBytes int64
	// AllowReservedNames accepts series of applications whose names have a prefix of Envoy or the agent.
	AllowReservedNames bool
	// OnlyLoopback rejects scrapers on other machines and in other pods.
	OnlyLoopback bool
}

// Application is a target whose metrics are merged with the proxy's.
type Application struct {
	// Name is the target's name in metrics, comments and labels: its port and path, such as "9090/metrics".
	Name string
	// URL is an HTTP or HTTPS URL. The certificate is not verified, because the target is in the same pod and its
	// certificate does not contain the loopback address.
	URL string
}

const (
	defaultApplicationBytes = 64 << 20
	// maxSpooled limits the memory of the second and further applications together during a scrape.
	maxSpooled = 4 << 20
	// The number of metric families is limited, because the merger holds their names in memory. The number of series is
	// not limited.
	maxEnvoyFamilies       = 200_000
	maxApplicationFamilies = 10_000
	maxRedirects           = 3

	acceptText = "text/plain;version=0.0.4,*/*;q=0.1"
	acceptBoth = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)

// newScraper returns a client that closes each connection after its request. At one scrape per minute, idle connections
// would only use memory.
func newScraper() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial.LocalhostDialer(&net.Dialer{Timeout: 2 * time.Second}),
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // see Application.URL
			DisableKeepAlives:      true,
			DisableCompression:     true, // on one machine, compression costs more than it saves
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Host != via[0].URL.Host || len(via) > maxRedirects {
				return fmt.Errorf("the response redirects to %s; only %d redirects are followed, and only to the same target", r.URL.Redacted(), maxRedirects)
			}
			return nil
		},
	}
}

// source is one source of a scrape. A goroutine sends its request.
type source struct {
	kind   string // label value in the failure metric
	name   string // name of the application; empty for Envoy and the agent
	limits exposition.Limits
	// reserved are name prefixes that the source must not use.
	reserved []string
	hidden   []string // see Metrics.HiddenSuffixes
	until    time.Time
	stop     context.CancelFunc

	answered chan struct{} // closed when the response has begun or the request has failed
	body     io.ReadCloser
	format   exposition.Format
	err      error

	read       chan struct{} // closed when text is complete; nil for sources that are streamed to the response
	text       []byte
	incomplete error // why text is incomplete; separate from err, which may be read before text is complete

	late    atomic.Bool // endBy cancelled the source before the end of the scrape
	copying *exposition.SourceCopy
	copied  exposition.CopyResult
}

func (s *source) String() string { return strings.TrimSpace(s.kind + " " + s.name) }

// startRequest sends the request to a source in the background. The response must be read before src.until.
func (s *Server) startRequest(ctx context.Context, src *source, target, accept string, from http.Header) *source {
	ctx, src.stop = context.WithDeadline(ctx, src.until)
	src.answered = make(chan struct{})
	go func() {
		src.body, src.format, src.err = s.request(ctx, target, accept, from)
		src.err = src.timeoutError(src.err)
		close(src.answered)
		if src.read != nil {
			src.spool()
			close(src.read)
		}
	}()
	return src
}

// requestAhead sends the request to a slow source and waits until it is sent. Otherwise the work that follows would
// delay the request, and thus the response.
func (s *Server) requestAhead(ctx context.Context, src *source, target, accept string) {
	written := make(chan struct{}, 1)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		select {
		case written <- struct{}{}:
		default: // after a redirect
		}
	}})
	s.startRequest(ctx, src, target, accept, nil)
	timer := time.NewTimer(readinessWait)
	defer timer.Stop()
	select {
	case <-written:
	case <-src.answered: // the connection may have failed
	case <-timer.C:
	}
}

// spool reads the whole response into memory, up to the limit.
func (s *source) spool() {
	if s.err != nil {
		return
	}
	s.text, s.incomplete = io.ReadAll(io.LimitReader(s.body, s.limits.Bytes+1))
	if int64(len(s.text)) > s.limits.Bytes {
		s.incomplete = &exposition.LimitError{What: fmt.Sprintf("%d bytes", s.limits.Bytes)}
	}
}

// close cancels the request and waits until its goroutine has stopped.
func (s *source) close() {
	s.stop()
	<-s.answered
	if s.read != nil {
		<-s.read
	}
	if s.body != nil {
		_ = s.body.Close()
	}
}

func (s *Server) request(ctx context.Context, target, accept string, from http.Header) (io.ReadCloser, exposition.Format, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range []string{"User-Agent", timeoutHeader} {
		if v := from.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	req.Header.Set("Accept", accept)
	resp, err := s.scraper.Do(req)
	if err != nil {
		return nil, 0, withoutURL(err)
	}
	kind := resp.Header.Get("Content-Type")
	format, ok := exposition.FormatOf(kind)
	encoding := resp.Header.Get("Content-Encoding")
	switch {
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("the response has status %s", resp.Status)
	case !ok:
		err = fmt.Errorf("the content type of the response is %q, which is neither text/plain nor OpenMetrics", kind)
	case encoding != "" && encoding != "identity":
		err = fmt.Errorf("the response is compressed (%q), which the agent did not request", encoding)
	default:
		return resp.Body, format, nil
	}
	_ = resp.Body.Close()
	return nil, 0, err
}

// withoutURL removes the URL from the error, because the scrape names the source separately.
func withoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	return err
}

var errSlow = errors.New("the complete response did not arrive in time")

// endBy cancels the source at a time before its own deadline. The returned function stops the timer.
func (s *source) endBy(early time.Time) (off func()) {
	timer := time.AfterFunc(time.Until(early), func() {
		s.late.Store(true)
		s.stop()
	})
	return func() { timer.Stop() }
}

// timeoutError returns errSlow if the source has exceeded its time, and otherwise err.
func (s *source) timeoutError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || s.late.Load() && errors.Is(err, context.Canceled) {
		return errSlow
	}
	return err
}

// Read implements io.Reader for the merger.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	return n, s.timeoutError(err)
}
