package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

const (
	// maxProbes limits the running probes of one path, and maxWaiting the queued probes. Kubelets send far fewer.
	maxProbes  = 16
	maxWaiting = 256
	// maxHook limits the duration of requests without a timeout, such as the lifecycle hooks of a container.
	maxHook = time.Hour
	// probeMargin is the time after the probe's timeout in which the caller can still read the response.
	probeMargin = 5 * time.Second
)

// AppProbes are the probes of the pod's containers that the injector redirected to the agent, because a kubelet cannot
// probe an application behind a sidecar that requires mTLS.
type AppProbes struct {
	// Paths maps the path that the kubelet requests, such as "/app-health/web/livez", to the probe.
	Paths map[string]probe.Spec
	// HTTP2 and KeepAlive are passed to probe.Config.
	HTTP2, KeepAlive bool
}

// appProbes handles the requests for application probes.
type appProbes struct {
	paths  map[string]*appProbe
	prober *probe.Prober
	port   string // the status server's port
}

// appProbe handles one path.
type appProbe struct {
	spec   probe.Spec
	logger *slog.Logger
	// Counters of results. A probe whose caller has disconnected is not counted.
	succeeded, failed, refused prometheus.Counter

	turns chan struct{} // has one element for each running probe
	queue chan struct{} // has one element for each running or queued probe

	mu      sync.Mutex
	failing bool
}

func newAppProbes(c AppProbes, status net.Addr, results *prometheus.CounterVec, logger *slog.Logger) *appProbes {
	a := &appProbes{paths: make(map[string]*appProbe, len(c.Paths))}
	_, a.port, _ = net.SplitHostPort(status.String())
	a.prober = probe.New(probe.Config{HTTP2: c.HTTP2, KeepAlive: c.KeepAlive, Refuse: a.refuseSelf})
	for path, spec := range c.Paths {
		a.paths[path] = &appProbe{
			spec:   spec,
			logger: logger.With("path", path),

			succeeded: results.WithLabelValues(path, "success"),
			failed:    results.WithLabelValues(path, "failure"),
			refused:   results.WithLabelValues(path, "refused"),

			turns: make(chan struct{}, maxProbes),
			queue: make(chan struct{}, maxProbes+maxWaiting),
		}
	}
	return a
}

// refuseSelf refuses redirects to this server, which would cause a loop.
func (a *appProbes) refuseSelf(to *url.URL) error {
	if to.Port() == a.port {
		return errors.New("the application redirects to the agent itself")
	}
	return nil
}

// ServeHTTP probes the application and returns its response.
func (a *appProbes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := a.paths[r.URL.Path]
	if p == nil {
		http.Error(w, fmt.Sprintf("no application probe is configured for %q (ISTIO_KUBE_APP_PROBERS)", r.URL.Path), http.StatusBadRequest)
		return
	}
	limit := p.limit()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + probeMargin))
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit, probe.TimeoutError(limit))
	defer cancel()
	answer, err := p.runLimited(ctx, func() (probe.Response, error) { return a.probe(ctx, p.spec, r) })
	p.record(ctx, answer, err)
	writeAnswer(w, answer, err)
}

// limit returns the maximum duration of the probe: its timeout, or maxHook if it has none.
func (p *appProbe) limit() time.Duration {
	if p.spec.Timeout <= 0 {
		return maxHook
	}
	return min(p.spec.Timeout, maxHook)
}

var errTooMany = errors.New("too many probes of this path are in progress")

// runLimited runs a probe when fewer than maxProbes probes of the path are running. It returns errTooMany if the queue
// is full or the context ends first.
func (p *appProbe) runLimited(ctx context.Context, run func() (probe.Response, error)) (probe.Response, error) {
	select {
	case p.queue <- struct{}{}:
		defer func() { <-p.queue }()
	default:
		return probe.Response{}, errTooMany
	}
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return probe.Response{}, fmt.Errorf("%w: %w", errTooMany, context.Cause(ctx))
	}
	return run()
}

func (a *appProbes) probe(ctx context.Context, spec probe.Spec, r *http.Request) (probe.Response, error) {
	well := probe.Response{Code: http.StatusOK}
	switch {
	case spec.HTTP != nil:
		return a.prober.HTTP(ctx, spec, probe.Request{Header: r.Header, Host: a.host(r.Host, spec.HTTP.Port)})
	case spec.GRPC != nil:
		return well, a.prober.GRPC(ctx, spec, r.UserAgent())
	default:
		return well, a.prober.Check(ctx, spec)
	}
}

// host returns the Host header for the application: the host that the kubelet requested, with the application's port.
func (a *appProbes) host(requested string, port uint16) string {
	if host, from, err := net.SplitHostPort(requested); err == nil && from == a.port {
		return net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return requested
}

func writeAnswer(w http.ResponseWriter, answer probe.Response, err error) {
	switch {
	case errors.Is(err, errTooMany):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body) // net/http sends no body for status codes without one
	}
}

// record counts the result. It logs the first failure, and the first success after a failure.
func (p *appProbe) record(ctx context.Context, answer probe.Response, err error) {
	if errors.Is(err, errTooMany) {
		p.refused.Inc()
		return // the application was not probed
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // the caller disconnected
	}
	if err == nil && answer.Code < http.StatusBadRequest { // the kubelet uses the same limit
		p.succeeded.Inc()
	} else {
		p.failed.Inc()
	}
	p.mu.Lock()
	before := p.failing
	p.failing = err != nil
	p.mu.Unlock()
	switch {
	case err != nil && !before:
		p.logger.Warn("the application does not respond to its probe; further failures are logged at level debug", "error", err)
	case err != nil:
		p.logger.Debug("the application does not respond to its probe", "error", err)
	case before:
		p.logger.Info("the application responds to its probe again")
	}
}
