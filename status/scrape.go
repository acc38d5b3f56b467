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

// Metrics says what a scrape of /metrics joins besides the agent's own metrics.
type Metrics struct {
	// Envoy gives the address of Envoy's statistics in Prometheus's format, as "http://127.0.0.1:15000/stats/prometheus".
	// It is asked for each scrape, for Envoys are replaced; "" is none. Nil: never.
	Envoy func() string
	// Applications are the targets in the pod. The first one's names stay as they are.
	Applications []Application
	// MaxApplicationBytes is the most that is taken from an application; 0: 64 MiB.
	MaxApplicationBytes int64
	// OnlyLoopback turns away scrapers from other machines and pods.
	OnlyLoopback bool
}

// Application is a target whose metrics are joined to the proxy's.
type Application struct {
	// Name is what the target is called in metrics, comments and labels: its port and path, as "9090/metrics".
	Name string
	// URL is where it is asked, over HTTP or HTTPS. The certificate is not verified: the target shares the pod, and its
	// certificate names anything but that address.
	URL string
}

const (
	defaultApplicationBytes = 64 << 20
	// mostSpooled is what the second and later applications may have in memory together during a scrape.
	mostSpooled = 4 << 20
	// A source may have many series, but names for each of them would cost memory.
	mostEnvoyFamilies       = 200_000
	mostApplicationFamilies = 10_000
	mostRedirects           = 3

	acceptText = "text/plain;version=0.0.4,*/*;q=0.1"
	acceptBoth = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)

// newScraper keeps no connections: a scrape a minute is not worth what they hold.
func newScraper() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial.Localhost(&net.Dialer{Timeout: 2 * time.Second}),
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // see Application.URL
			DisableKeepAlives:      true,
			DisableCompression:     true, // on one machine that costs more than it saves
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Host != via[0].URL.Host || len(via) > mostRedirects {
				return fmt.Errorf("it redirects to %s; a target may redirect %d times, to itself", r.URL.Redacted(), mostRedirects)
			}
			return nil
		},
	}
}

// source is one of the sources of a scrape, asked in the background.
type source struct {
	kind   string // as in the metric of failures
	name   string // of an application
	limits exposition.Limits
	until  time.Time
	stop   context.CancelFunc

	answered chan struct{} // closed when the answer has begun, or there is none
	body     io.ReadCloser
	format   exposition.Format
	err      error

	read    chan struct{} // closed when text is there; nil for what is read as it comes
	text    []byte
	unwhole error // why text is not all; err is read by others before that is known

	late    atomic.Bool // its time was over before that of the scrape
	copying *exposition.Copying
	copied  exposition.Copied
}

func (s *source) String() string { return strings.TrimSpace(s.kind + " " + s.name) }

// ask begins to ask a source. What it gets is read until the time is over, by whoever reads it.
func (s *Server) ask(ctx context.Context, src *source, target, accept string, from http.Header) *source {
	ctx, src.stop = context.WithDeadline(ctx, src.until)
	src.answered = make(chan struct{})
	go func() {
		src.body, src.format, src.err = s.request(ctx, target, accept, from)
		src.err = src.inTime(src.err)
		close(src.answered)
		if src.read != nil {
			src.spool()
			close(src.read)
		}
	}()
	return src
}

// askAhead asks a source that takes long, and waits until the request is on its way: what is done next would take processor
// time from it, and the answer comes as much later.
func (s *Server) askAhead(ctx context.Context, src *source, target, accept string) {
	written := make(chan struct{}, 1)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		select {
		case written <- struct{}{}:
		default: // it follows a redirection
		}
	}})
	s.ask(ctx, src, target, accept, nil)
	timer := time.NewTimer(foresight)
	defer timer.Stop()
	select {
	case <-written:
	case <-src.answered: // perhaps nobody was there to be asked
	case <-timer.C:
	}
}

// spool reads the whole answer, as far as there is room for it.
func (s *source) spool() {
	if s.err != nil {
		return
	}
	s.text, s.unwhole = io.ReadAll(io.LimitReader(s.body, s.limits.Bytes+1))
	if int64(len(s.text)) > s.limits.Bytes {
		s.unwhole = &exposition.TooMuchError{What: fmt.Sprintf("%d bytes", s.limits.Bytes)}
	}
}

// close gives up on what is under way, and waits for it to end.
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
		err = fmt.Errorf("it answered %s", resp.Status)
	case !ok:
		err = fmt.Errorf("it answered with %q, which is neither text/plain nor OpenMetrics", kind)
	case encoding != "" && encoding != "identity":
		err = fmt.Errorf("it compressed its answer (%q) although it was not asked to", encoding)
	default:
		return resp.Body, format, nil
	}
	_ = resp.Body.Close()
	return nil, 0, err
}

// withoutURL drops the URL, which the report names anyway.
func withoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	return err
}

var errSlow = errors.New("it is too slow: the time for it was over")

// endBy ends the source at a time that is before its own, unless it is called off.
func (s *source) endBy(early time.Time) (off func()) {
	timer := time.AfterFunc(time.Until(early), func() {
		s.late.Store(true)
		s.stop()
	})
	return func() { timer.Stop() }
}

// inTime tells the end of a source's time as that.
func (s *source) inTime(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || s.late.Load() && errors.Is(err, context.Canceled) {
		return errSlow
	}
	return err
}

// Read is for the merger.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	return n, s.inTime(err)
}
