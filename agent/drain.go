package agent

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	// What a drain waits for is counted at first so often, and then ever less.
	firstCount, rarestCount = 50 * time.Millisecond, time.Second
	// countTime bounds one count, and countFailures is how many may fail in a row until there is no use in them.
	countTime     = time.Second
	countFailures = 5
	// progressEvery is how often a long drain is told of.
	progressEvery = 5 * time.Second
)

// load is what an Envoy serves at one moment, without what is its own: probes, scrapes, and the admin interface.
type load struct {
	connections uint64 // of all listeners
	requests    uint64 // of HTTP; a tunnel or a stream is one request for as long as it lasts
	// unsent are the bytes of answers that Envoy has whole, and whose clients are still reading what came before; unsentTCP
	// those that it holds for clients of TCP.
	unsent, unsentTCP uint64
	// untaken are bytes on their way to servers of TCP, which read more slowly than they are sent to.
	untaken uint64
}

func (l load) none() bool { return l == load{} }

// unfinished says whether something would be cut in the middle.
func (l load) unfinished() bool { return l.requests > 0 || l.unsent > 0 || l.busyTCP() }

// busyTCP says whether bytes of TCP wait for whoever is to read them.
func (l load) busyTCP() bool { return l.unsentTCP > 0 || l.untaken > 0 }

func (l load) String() string {
	text := fmt.Sprintf("%d requests and %d connections", l.requests, l.connections)
	if n := l.unsent + l.unsentTCP; n > 0 {
		text += fmt.Sprintf(", and %d bytes that clients have not read yet,", n)
	}
	if l.untaken > 0 {
		text += fmt.Sprintf(", and %d bytes that servers have not read yet,", l.untaken)
	}
	return text
}

const loadStats = `^(listener\..*\.downstream_cx_active|http\..*\.downstream_rq_active|(http|tcp)\..*\.downstream_cx_tx_bytes_buffered)$`

var isLoad = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(loadStats) })

// load counts.
func (i *instance) load(ctx context.Context, own *regexp.Regexp) (load, error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	stats, err := i.admin.Stats(ctx, loadStats)
	if err != nil {
		return load{}, err
	}
	return i.addUntaken(countLoad(stats, own))
}

// addUntaken looks at what no statistics show, where that makes a difference. Where the kernel does not tell, what waits
// for servers has the time that connections without a request have.
func (i *instance) addUntaken(l load, err error) (load, error) {
	if err == nil && l.connections > 0 && !l.unfinished() {
		l.untaken, _ = i.process.Untaken()
	}
	return l, err
}

func countLoad(stats map[string]uint64, own *regexp.Regexp) (load, error) {
	var l load
	listeners := false
	for name, n := range stats {
		isListener := strings.HasPrefix(name, "listener.")
		listeners = listeners || isListener
		switch {
		case own.MatchString(name), strings.Contains(name, ".worker_"):
		case isListener:
			l.connections += n
		case strings.HasPrefix(name, "tcp."):
			l.unsentTCP += n
		case strings.HasSuffix(name, "_buffered"):
			l.unsent += n
		default:
			l.requests += n
		}
	}
	if !listeners {
		return l, fmt.Errorf("Envoy's statistics leave out downstream_cx_active of its listeners: a bootstrap of your own has to include it")
	}
	return l, nil
}

// ownStats matches the statistics of listeners and of HTTP servers whose clients do not hold up the end. Listeners are
// told by their port, since what they bind differs (0.0.0.0, an IPv6 address, one address of loopback).
func ownStats(c *Config) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^(listener\.(admin\.|envoy_internal_|.*_(%d|%d|%d|%d|%d)\.downstream)|http\.(admin|agent|stats|secure_stats|secure_merged_stats)\.)`,
		c.Proxy.GetProxyAdminPort(), c.Envoy.ReadinessPort, c.Envoy.PrometheusPort, c.Metrics.SecurePort, c.Metrics.SecureMergedPort))
}

// count is what one look showed.
type count struct {
	load
	err      error
	failures int // in a row, with this one
	// lastBusyTCP is how long the drain had gone on when bytes of TCP last waited for a reader. There may be more to come,
	// which does not show.
	lastBusyTCP time.Duration
}

// after is the count with what it takes over from the one before.
func (c count) after(before count, ran time.Duration) count {
	c.lastBusyTCP = before.lastBusyTCP
	if c.busyTCP() {
		c.lastBusyTCP = ran
	}
	return c
}

// enough says whether a drain that went on for so long may end, and why.
func (s ShutdownConfig) enough(c count, ran time.Duration) (why string, ok bool) {
	switch {
	case ran < s.Minimum:
		return "", false
	case c.failures >= countFailures:
		return fmt.Sprintf("what it serves cannot be counted: %v", c.err), ran >= s.Linger
	case c.err != nil, c.unfinished():
		return "", false
	case c.connections == 0:
		return "no request and no connection is left", true
	}
	return fmt.Sprintf("no request is left, and its %d connections had their time", c.connections), ran-c.lastBusyTCP >= s.Linger && !s.WhenIdle
}

// pause is how long to wait for the next look: not beyond the moment at which something changes by itself.
func (s ShutdownConfig) pause(pace, ran, lastBusyTCP time.Duration) time.Duration {
	for _, moment := range []time.Duration{s.Minimum, lastBusyTCP + s.Linger} {
		if moment > ran {
			pace = min(pace, moment-ran)
		}
	}
	return pace
}

// wait looks at what the Envoy serves until that is enough, and says why it ended. Before the end, listeners are closed and
// it is looked once more: what comes in between would be cut.
func (n *ending) wait(ctx context.Context) string {
	began, closed := time.Now(), false
	progress, pace := began.Add(progressEvery), firstCount
	var c count
	for {
		c = n.look(ctx, c).after(c, time.Since(began))
		why, ok := n.plan.enough(c, time.Since(began))
		switch {
		case ctx.Err() != nil:
			return n.cut(ctx, c)
		case ok && closed:
			return why
		case ok:
			closed = true
			if err := n.closeListeners(ctx, n.i); err != nil {
				n.Logger.Warn("Envoy was not told to take no more connections", "error", err)
			}
			continue
		}
		if now := time.Now(); now.After(progress) {
			progress = now.Add(progressEvery)
			n.Logger.Info("still draining", "requests", c.requests, "connections", c.connections, "left", time.Until(n.deadline).Round(time.Second))
		}
		sleep(ctx, n.plan.pause(pace, time.Since(began), c.lastBusyTCP))
		pace = min(pace*3/2, rarestCount)
	}
}

// look counts once.
func (n *ending) look(ctx context.Context, before count) count {
	seen, err := n.i.load(ctx, n.own)
	if err != nil {
		return count{load: before.load, err: err, failures: before.failures + 1}
	}
	n.progress.show(seen, n.deadline)
	return count{load: seen}
}

// cut says why the drain ended before it was done, and what that costs.
func (n *ending) cut(ctx context.Context, c count) string {
	why := context.Cause(ctx).Error()
	if c.none() || context.Cause(ctx) == errGone {
		return why
	}
	n.bad = context.Cause(ctx) == errTimeOver && c.unfinished()
	return fmt.Sprintf("%s; %s are cut", why, c.load)
}
