package agent

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

const (
	// minCountInterval is the first interval between two counts of the traffic. It grows up to maxCountInterval.
	minCountInterval, maxCountInterval = 50 * time.Millisecond, time.Second
	// countTimeout is the timeout of one count. After maxCountFailures consecutive failures, the drain ends when the
	// time limit for idle connections has passed.
	countTimeout     = time.Second
	maxCountFailures = 5
	// progressInterval is the interval between log messages of a long drain.
	progressInterval = 5 * time.Second
)

// activeTraffic is the traffic of an Envoy at one moment, without probes, scrapes and requests to the admin interface.
type activeTraffic struct {
	connections uint64 // of all listeners
	requests    uint64 // HTTP requests; a tunnel or a stream counts as one
	// bufferedHTTP is the number of response bytes that Envoy has received completely and that clients have not read
	// yet. bufferedTCP is the number of bytes that Envoy buffers for TCP clients.
	bufferedHTTP, bufferedTCP uint64
	// unreadTCP is the number of bytes in sockets to TCP servers that the servers have not read yet.
	unreadTCP uint64
}

func (l activeTraffic) isZero() bool { return l == activeTraffic{} }

// hasUnfinished reports whether a stop would cut a request, a response or TCP data.
func (l activeTraffic) hasUnfinished() bool {
	return l.requests > 0 || l.bufferedHTTP > 0 || l.hasBufferedTCP()
}

// hasBufferedTCP reports whether there is buffered TCP data that its receiver has not read yet.
func (l activeTraffic) hasBufferedTCP() bool { return l.bufferedTCP > 0 || l.unreadTCP > 0 }

func (l activeTraffic) String() string {
	text := phrase.Count(l.requests, "request") + " and " + phrase.Count(l.connections, "connection")
	if n := l.bufferedHTTP + l.bufferedTCP; n > 0 {
		text += fmt.Sprintf(", and %s that clients have not read,", phrase.Count(n, "byte"))
	}
	if l.unreadTCP > 0 {
		text += fmt.Sprintf(", and %s that servers have not read,", phrase.Count(l.unreadTCP, "byte"))
	}
	return text
}

const trafficStats = `^(listener\..*\.downstream_cx_active|http\..*\.downstream_rq_active|(http|tcp)\..*\.downstream_cx_tx_bytes_buffered|` + arrivalStats + `)$`

var trafficStatsPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(trafficStats) })

// countTraffic reads the active traffic from Envoy's statistics. It ignores the statistics whose names match own.
func (i *envoyInstance) countTraffic(ctx context.Context, own *regexp.Regexp) (activeTraffic, error) {
	seen, _, err := i.countTrafficAndArrivals(ctx, own)
	return seen, err
}

// countTrafficAndArrivals is like countTraffic, and also reads the arrivals. They are zero if the statistics do not
// include them.
func (i *envoyInstance) countTrafficAndArrivals(ctx context.Context, own *regexp.Regexp) (activeTraffic, arrivals, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := i.admin.Stats(ctx, trafficStats)
	if err != nil {
		return activeTraffic{}, arrivals{}, err
	}
	arrived, _ := sumArrivals(stats, own)
	seen, err := i.addUnreadTCP(sumTraffic(stats, own))
	return seen, arrived, err
}

// addUnreadTCP adds the TCP bytes that servers have not read yet, which Envoy's statistics do not include. It queries
// the kernel only if l has connections but no other unfinished traffic. If the query fails, these connections count as
// idle.
func (i *envoyInstance) addUnreadTCP(l activeTraffic, err error) (activeTraffic, error) {
	if err == nil && l.connections > 0 && !l.hasUnfinished() {
		l.unreadTCP, _ = i.process.PendingUpstreamBytes()
	}
	return l, err
}

func sumTraffic(stats map[string]uint64, own *regexp.Regexp) (activeTraffic, error) {
	var l activeTraffic
	listeners := false
	for name, n := range stats {
		isListener := strings.HasPrefix(name, "listener.")
		listeners = listeners || isListener
		switch {
		case own.MatchString(name), strings.Contains(name, ".worker_"), strings.HasSuffix(name, "_total"):
		case isListener:
			l.connections += n
		case strings.HasPrefix(name, "tcp."):
			l.bufferedTCP += n
		case strings.HasSuffix(name, "_buffered"):
			l.bufferedHTTP += n
		default:
			l.requests += n
		}
	}
	if !listeners {
		return l, fmt.Errorf("Envoy's statistics do not include downstream_cx_active of its listeners: include it in your custom bootstrap")
	}
	return l, nil
}

// ownStatsPattern matches the statistics of listeners and HTTP servers for probes, scrapes and administration. Their
// clients do not delay the shutdown. It identifies listeners by port, because their addresses differ (0.0.0.0, an IPv6
// address, one loopback address).
func ownStatsPattern(c *config.Config) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^(listener\.(admin\.|envoy_internal_|.*_(%d|%d|%d|%d|%d)\.downstream)|http\.(admin|agent|stats|secure_stats|secure_merged_stats)\.)`,
		c.Proxy.GetProxyAdminPort(), c.Envoy.ReadinessPort, c.Envoy.PrometheusPort, c.Metrics.SecurePort, c.Metrics.SecureMergedPort))
}

// trafficSample is the result of one count.
type trafficSample struct {
	activeTraffic
	err      error
	failures int // consecutive, including this one
	// lastBusyTCP is the elapsed drain time of the last sample with buffered TCP data. More data may follow on such a
	// connection, but the statistics do not show that.
	lastBusyTCP time.Duration

	arrivals
	// lastArrival is the elapsed drain time of the last sample with a new arrival. The drain ends early when nothing has
	// arrived for the time quiet.
	lastArrival, quiet time.Duration
}

// withHistory returns c with the history of the drain: the history in the previous sample before, updated by the
// changes in c. ran is the time since the drain began. After an arrival, at least the time quiet passes before the
// drain ends early.
func (c trafficSample) withHistory(before trafficSample, ran, quiet time.Duration) trafficSample {
	c.lastBusyTCP, c.lastArrival, c.quiet = before.lastBusyTCP, before.lastArrival, before.quiet
	if c.hasBufferedTCP() {
		c.lastBusyTCP = ran
	}
	if c.countSince(before.arrivals) > 0 {
		c.lastArrival, c.quiet = ran, max(c.quiet, quiet)
	}
	return c
}

// isQuiet reports whether the drain may end without a wait for further arrivals: nothing has arrived for the time
// c.quiet, or s.QuietLimit has passed.
func (c trafficSample) isQuiet(s config.Shutdown, ran time.Duration) bool {
	return ran-c.lastArrival >= c.quiet || ran >= s.QuietLimit()
}

// checkDrained reports whether the drain may end, and why. ran is the time since the drain began.
func checkDrained(s config.Shutdown, c trafficSample, ran time.Duration) (why string, ok bool) {
	switch {
	case ran < s.Minimum:
		return "", false
	case c.failures >= maxCountFailures:
		return fmt.Sprintf("cannot count the requests and connections of Envoy: %v", c.err), ran >= s.Linger
	case c.err != nil, c.hasUnfinished(), c.connections == 0 && !c.isQuiet(s, ran):
		return "", false
	case c.connections == 0:
		return "no request and no connection is left", true
	}
	return fmt.Sprintf("no request is left, and the time limit for its %d idle connections has passed", c.connections), ran-c.lastBusyTCP >= s.Linger && !s.WhenIdle
}

// pollDelay returns the delay before the next count: pace, or less if a time limit of checkDrained passes earlier.
func pollDelay(s config.Shutdown, pace, ran time.Duration, c trafficSample) time.Duration {
	for _, moment := range []time.Duration{s.Minimum, c.lastBusyTCP + s.Linger, c.lastArrival + c.quiet, s.QuietLimit()} {
		if moment > ran {
			pace = min(pace, moment-ran)
		}
	}
	return pace
}

// waitDrained counts the traffic until the drain is done, and returns the reason why it ended. It closes the listeners
// before the last count, so that no connection arrives after that count.
func (n *shutdown) waitDrained(ctx context.Context) string {
	began, closed := time.Now(), false
	progress, pace := began.Add(progressInterval), minCountInterval
	c := n.firstSample(ctx)
	for {
		c = n.sample(ctx, c).withHistory(c, time.Since(began), n.plan.Quiet)
		why, ok := checkDrained(n.plan, c, time.Since(began))
		switch {
		case ctx.Err() != nil:
			return n.describeCut(ctx, c)
		case ok && closed:
			return why
		case ok:
			closed = true
			c.quiet, n.plan.Quiet = 0, 0 // nothing arrives any more
			if err := n.closeListeners(ctx, n.instance); err != nil {
				n.Logger.Warn("cannot close Envoy's listeners", "error", err)
			}
			continue
		}
		if now := time.Now(); now.After(progress) {
			progress = now.Add(progressInterval)
			n.Logger.Info("still draining", "requests", c.requests, "connections", c.connections, "timeLeft", time.Until(n.deadline).Round(time.Second))
		}
		backoff.Sleep(ctx, pollDelay(n.plan, pace, time.Since(began), c))
		pace = min(pace*3/2, maxCountInterval)
	}
}

// sample counts the traffic once, and records it in drainTracker. If the count fails, it returns the traffic of before
// with the error.
func (n *shutdown) sample(ctx context.Context, before trafficSample) trafficSample {
	seen, arrived, err := n.instance.countTrafficAndArrivals(ctx, n.ownStats)
	if err != nil {
		return trafficSample{activeTraffic: before.activeTraffic, arrivals: before.arrivals, err: err, failures: before.failures + 1}
	}
	n.drainTracker.update(seen, n.deadline)
	return trafficSample{activeTraffic: seen, arrivals: arrived}
}

// describeCut returns the reason for a premature end of the drain, and the traffic that is cut. It sets n.cutsRequests
// if the deadline cuts unfinished traffic.
func (n *shutdown) describeCut(ctx context.Context, c trafficSample) string {
	why := context.Cause(ctx).Error()
	if c.isZero() || context.Cause(ctx) == errEnvoyExited {
		return why
	}
	n.cutsRequests = context.Cause(ctx) == errDeadline && c.hasUnfinished()
	return fmt.Sprintf("%s; %s are cut", why, c.activeTraffic)
}
