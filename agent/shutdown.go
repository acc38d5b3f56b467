package agent

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

const (
	// drainCallTime bounds the call that begins the drain: an Envoy that does not answer is not waited for.
	drainCallTime = 2 * time.Second
	// hastened is what Envoy gets to end when the agent was asked twice to stop.
	hastened = time.Second
	// idlePoll is how often connections are counted, and idleErrors how many counts may fail in a row.
	idlePoll   = 250 * time.Millisecond
	idleErrors = 5
)

// stop ends Envoy within one deadline: clients are told to go and given time for it, Envoy is asked to end, and killed
// when the deadline passes.
func (e *envoyPart) stop(i *instance) {
	c := e.Config.Shutdown
	e.draining.Store(true)
	deadline, cancel := context.WithTimeout(context.Background(), c.Drain+c.Stop)
	defer cancel()
	drain, endDrain := context.WithTimeoutCause(deadline, c.Drain, context.DeadlineExceeded)
	defer endDrain()

	switch {
	case e.quitting():
		e.Logger.Info("stopping Envoy at once, as asked on the status port")
	case e.drained.Load():
		e.Logger.Info("stopping Envoy, which was drained before")
	default:
		e.Logger.Info("draining", "for", c.Drain, "untilIdle", c.WhenIdle)
		e.Logger.Info("stopping Envoy", "because", e.drainUntil(drain, i))
	}
	last, cancelLast := e.lastGrace(deadline)
	defer cancelLast()
	i.enter(Stopping)
	i.process.Stop(last)
}

// lastGrace is the time that Envoy has to end: to the deadline, or less when the agent is asked again to stop.
func (e *envoyPart) lastGrace(deadline context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(deadline, e.Config.Shutdown.Stop)
	stopWatching := make(chan struct{})
	go func() {
		select {
		case <-e.Hasten:
			sleep(ctx, hastened)
			cancel()
		case <-stopWatching:
		case <-ctx.Done():
		}
	}()
	return ctx, func() { close(stopWatching); cancel() }
}

func (e *envoyPart) quitting() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// drainUntil tells clients to go, and says why it stopped waiting for them.
func (e *envoyPart) drainUntil(ctx context.Context, i *instance) string {
	if err := e.tellClients(ctx, i, false); err != nil {
		e.Logger.Warn("Envoy was not told to drain", "error", err)
	}
	idle := make(chan string, 1)
	if e.Config.Shutdown.WhenIdle {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { idle <- e.waitIdle(ctx, i) }()
	}
	select {
	case why := <-idle:
		return why
	case <-ctx.Done():
		return "the drain time is over"
	case <-i.process.Done():
		return "it ended while it drained"
	case <-e.Hasten:
		return "asked again to stop"
	case <-e.quit:
		return "asked on the status port to quit"
	}
}

func (e *envoyPart) tellClients(ctx context.Context, i *instance, stayOpen bool) error {
	i.enter(Draining)
	ctx, cancel := context.WithTimeout(ctx, drainCallTime)
	defer cancel()
	return i.admin.DrainListeners(ctx, envoy.Drain{
		InboundOnly: e.Config.Identity.Type == bootstrap.Sidecar,
		Graceful:    true,
		SkipExit:    stayOpen,
	})
}

// waitIdle returns when no client is left, or when that cannot be told.
func (e *envoyPart) waitIdle(ctx context.Context, i *instance) string {
	if !sleep(ctx, e.Config.Shutdown.Minimum) {
		return "the drain time is over"
	}
	for failures := 0; ; {
		n, err := e.connections(ctx, i)
		switch {
		case err == nil && n == 0:
			return "no connection is left"
		case err == nil:
			failures = 0
		default:
			if failures++; failures == idleErrors {
				return fmt.Sprintf("its connections cannot be counted: %v", err)
			}
		}
		if !sleep(ctx, idlePoll) {
			return "the drain time is over"
		}
	}
}

// connections counts the clients of all listeners but those of the agent and its operators.
func (e *envoyPart) connections(ctx context.Context, i *instance) (uint64, error) {
	stats, err := i.admin.Stats(ctx, `^listener\..*\.downstream_cx_active$`)
	if err != nil {
		return 0, err
	}
	own := ownListeners(e.Config)
	var n uint64
	for name, value := range stats {
		if !own.MatchString(name) && !strings.Contains(name, ".worker_") {
			n += value
		}
	}
	return n, nil
}

// ownListeners matches the statistics of listeners whose connections do not hold up the end. They are told by their
// port, since what they bind differs (0.0.0.0, an IPv6 address, one address of loopback).
func ownListeners(c *Config) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^listener\.(admin\.|envoy_internal_|.*_(%d|%d|%d)\.downstream)`,
		c.Proxy.GetProxyAdminPort(), c.Envoy.ReadinessPort, c.Envoy.PrometheusPort))
}
