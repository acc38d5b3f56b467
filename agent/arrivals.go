package agent

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// arrivalInterval is the interval between two counts of the arrivals while Envoy runs. It is at least
	// minPauseFactor times the duration of a count, which is long if Envoy has very many statistics.
	arrivalInterval = 5 * time.Second
	minPauseFactor  = 20
	// quietGaps is the minimum length of the quiet period, as a multiple of the mean interval between two arrivals. If
	// clients send rarely, a short quiet period would miss the next arrival.
	quietGaps = 5
)

// arrivalStats matches the counters of the connections and requests that Envoy has accepted.
const arrivalStats = `listener\..*\.downstream_cx_total|http\..*\.downstream_rq_total`

// arrivals counts the connections and requests that an Envoy has accepted since its start, without probes, scrapes and
// requests to the admin interface.
type arrivals struct{ acceptedConnections, acceptedRequests uint64 }

// countSince returns the number of arrivals between the earlier count before and a. A request on a new connection is
// one arrival. countSince returns 0 if a counter has decreased.
func (a arrivals) countSince(before arrivals) uint64 {
	if a.acceptedConnections < before.acceptedConnections || a.acceptedRequests < before.acceptedRequests {
		return 0 // Envoy has removed a listener with its statistics
	}
	return max(a.acceptedConnections-before.acceptedConnections, a.acceptedRequests-before.acceptedRequests)
}

// sumArrivals returns the arrivals in Envoy's statistics. It ignores statistics that match own.
func sumArrivals(stats map[string]uint64, own *regexp.Regexp) (arrivals, error) {
	var sum arrivals
	known := false
	for name, n := range stats {
		switch isListener := strings.HasPrefix(name, "listener."); {
		case !strings.HasSuffix(name, "_total"):
		case own.MatchString(name), strings.Contains(name, ".worker_"):
			known = known || isListener
		case isListener:
			known = true
			sum.acceptedConnections += n
		default:
			sum.acceptedRequests += n
		}
	}
	if !known {
		return sum, errors.New("Envoy's statistics do not include downstream_cx_total of its listeners: include it in your custom bootstrap")
	}
	return sum, nil
}

// arrivalHistory contains the last two counts of an Envoy's arrivals.
type arrivalHistory struct{ older, newer arrivalSample }

type arrivalSample struct {
	at time.Time
	arrivals
}

// startArrivals returns the history of an Envoy that starts now.
func startArrivals() arrivalHistory {
	start := arrivalSample{at: time.Now()}
	return arrivalHistory{start, start}
}

// quietPeriod returns the time without arrivals after which a drain ends early. It returns 0 if nothing has arrived
// since the older count, which is up to two intervals before now.
func (h arrivalHistory) quietPeriod(s config.Shutdown, now arrivalSample) time.Duration {
	arrived := now.countSince(h.older.arrivals)
	if s.Quiet == 0 || arrived == 0 {
		return 0
	}
	return max(s.Quiet, quietGaps*now.at.Sub(h.older.at)/time.Duration(arrived))
}

// countArrivals reads the arrivals from Envoy's statistics.
func (i *envoyInstance) countArrivals(ctx context.Context, own *regexp.Regexp) (arrivalSample, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := i.admin.Counters(ctx, "^("+arrivalStats+")$")
	if err != nil {
		return arrivalSample{}, err
	}
	sum, err := sumArrivals(stats, own)
	return arrivalSample{time.Now(), sum}, err
}

func (i *envoyInstance) recordArrivals(s arrivalSample) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.arrivals.older, i.arrivals.newer = i.arrivals.newer, s
}

func (i *envoyInstance) arrivalHistory() arrivalHistory {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.arrivals
}

// arrivalsComponent counts the arrivals while Envoy runs, because the quiet period of a drain depends on them.
func (e *envoySupervisor) arrivalsComponent() component {
	return component{name: "arrivals", run: e.watchArrivals, restart: true}
}

func (e *envoySupervisor) watchArrivals(ctx context.Context) error {
	for pause := arrivalInterval; backoff.Sleep(ctx, pause); {
		began := time.Now()
		if i := e.currentInstance(); i != nil {
			if s, err := i.countArrivals(ctx, e.ownStats); err == nil {
				i.recordArrivals(s)
			}
		}
		pause = max(arrivalInterval, minPauseFactor*time.Since(began))
	}
	return nil
}

// firstSample returns the sample with which the history of a drain begins. If the arrivals cannot be counted, the drain
// does not end early.
func (n *shutdown) firstSample(ctx context.Context) trafficSample {
	if !n.plan.EndsEarly() {
		return trafficSample{}
	}
	now, err := n.instance.countArrivals(ctx, n.ownStats)
	if err != nil {
		n.Logger.Debug("cannot count the connections and requests that arrive at Envoy", "error", err)
		return trafficSample{quiet: n.plan.Linger}
	}
	return trafficSample{arrivals: now.arrivals, quiet: n.instance.arrivalHistory().quietPeriod(n.plan, now)}
}
