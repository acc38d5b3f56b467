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
	// mostProbes of one path are under way at once, and mostWaiting more wait for their turn, which no kubelet comes near.
	mostProbes  = 16
	mostWaiting = 256
	// longestHook bounds what has no timeout, as the hooks of a container's life have none.
	longestHook = time.Hour
	// probeMargin is what a caller may take to read the answer.
	probeMargin = 5 * time.Second
)

// AppProbes are the probes of the pod's containers that the injector redirected to the agent: behind a sidecar that wants
// mTLS, a kubelet cannot ask the application itself.
type AppProbes struct {
	// Paths has them by the path that the kubelet asks, as "/app-health/web/livez".
	Paths map[string]probe.Spec
	// HTTP2 and KeepAlive are those of probe.Config.
	HTTP2, KeepAlive bool
}

// appProbes answers for the application.
type appProbes struct {
	paths  map[string]*appProbe
	prober *probe.Prober
	port   string // of the status server
}

// appProbe is one of them.
type appProbe struct {
	spec   probe.Spec
	logger *slog.Logger
	// How often it ended so; what its caller gave up is not counted.
	succeeded, failed, refused prometheus.Counter

	turns chan struct{} // holds one for each probe under way
	queue chan struct{} // holds one for each that is under way or waits

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

			turns: make(chan struct{}, mostProbes),
			queue: make(chan struct{}, mostProbes+mostWaiting),
		}
	}
	return a
}

// refuseSelf ends a circle: an application that redirects to this server would have it probe, and so redirect, forever.
func (a *appProbes) refuseSelf(to *url.URL) error {
	if to.Port() == a.port {
		return errors.New("the application redirects to the agent itself")
	}
	return nil
}

// ServeHTTP asks the application what the kubelet asks the agent.
func (a *appProbes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := a.paths[r.URL.Path]
	if p == nil {
		http.Error(w, fmt.Sprintf("no application probe is configured for %q (ISTIO_KUBE_APP_PROBERS)", r.URL.Path), http.StatusBadRequest)
		return
	}
	limit := p.limit()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + probeMargin))
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit, probe.TooLate(limit))
	defer cancel()
	answer, err := p.inTurn(ctx, func() (probe.Answer, error) { return a.ask(ctx, p.spec, r) })
	p.tell(ctx, answer, err)
	writeAnswer(w, answer, err)
}

// limit is how long the probe may take; a gRPC probe without a timeout has its own.
func (p *appProbe) limit() time.Duration {
	if p.spec.Timeout <= 0 {
		return longestHook
	}
	return min(p.spec.Timeout, longestHook)
}

var errTooMany = errors.New("too many probes of this path are under way")

// inTurn asks when it is the caller's turn.
func (p *appProbe) inTurn(ctx context.Context, ask func() (probe.Answer, error)) (probe.Answer, error) {
	select {
	case p.queue <- struct{}{}:
		defer func() { <-p.queue }()
	default:
		return probe.Answer{}, errTooMany
	}
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return probe.Answer{}, fmt.Errorf("%w: %w", errTooMany, context.Cause(ctx))
	}
	return ask()
}

func (a *appProbes) ask(ctx context.Context, spec probe.Spec, r *http.Request) (probe.Answer, error) {
	well := probe.Answer{Code: http.StatusOK}
	switch {
	case spec.HTTP != nil:
		return a.prober.HTTP(ctx, spec, probe.Request{Header: r.Header, Host: a.host(r.Host, spec.HTTP.Port)})
	case spec.GRPC != nil:
		return well, a.prober.GRPC(ctx, spec, r.UserAgent())
	default:
		return well, a.prober.Check(ctx, spec)
	}
}

// host is what the application is asked for: what the agent was asked for, with the port that the kubelet would have used.
func (a *appProbes) host(asked string, port uint16) string {
	if host, from, err := net.SplitHostPort(asked); err == nil && from == a.port {
		return net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return asked
}

func writeAnswer(w http.ResponseWriter, answer probe.Answer, err error) {
	switch {
	case errors.Is(err, errTooMany):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body) // nothing is sent where the code allows no body
	}
}

// tell counts the result, and logs the first failure and the end of failing; the rest is the application's own business.
func (p *appProbe) tell(ctx context.Context, answer probe.Answer, err error) {
	if errors.Is(err, errTooMany) {
		p.refused.Inc()
		return // it was not asked: that says nothing of the application
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // the caller went away
	}
	if err == nil && answer.Code < http.StatusBadRequest { // as a kubelet sees it
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
		p.logger.Warn("the application does not answer its probe; further failures are logged at level debug", "error", err)
	case err != nil:
		p.logger.Debug("the application does not answer its probe", "error", err)
	case before:
		p.logger.Info("the application answers its probe again")
	}
}
