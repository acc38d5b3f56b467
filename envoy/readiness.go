package envoy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ReadinessConfig says what an Envoy has to have before it is ready.
type ReadinessConfig struct {
	Admin *Admin
	// Dynamic is set when clusters and listeners come from a control plane: each has to have been accepted once.
	Dynamic bool
}

// Readiness judges whether an Envoy is ready, and says why not. It is safe for concurrent use.
//
// Configuration and start-up are looked at until they are done, once for each process; after that only Envoy's own state
// is asked. An Envoy that is slow to answer then keeps its verdict: its main thread is busy with configuration, while its
// workers serve.
type Readiness struct {
	ReadinessConfig
	mu      sync.Mutex
	started bool
}

// NewReadiness makes a judge for one Envoy process; a restarted Envoy needs a new one.
func NewReadiness(c ReadinessConfig) *Readiness { return &Readiness{ReadinessConfig: c} }

// Check asks Envoy. The reason is for people, and empty when Envoy is ready.
func (r *Readiness) Check(ctx context.Context) (ok bool, reason string) {
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	if reason = r.judge(ctx, started); reason != "" {
		return false, reason
	}
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	return true, ""
}

func (r *Readiness) judge(ctx context.Context, started bool) string {
	state, err := r.Admin.Ready(ctx)
	switch {
	case err != nil && started && errors.Is(err, context.DeadlineExceeded):
		return ""
	case err != nil:
		return unreachable(r.Admin.addr, err)
	case state == "DRAINING":
		return "Envoy is DRAINING: it was told to fail its health checks, or is about to end"
	case state == "LIVE" && started:
		return ""
	}
	stats, err := r.Admin.Stats(ctx, readinessStats)
	if err != nil {
		return unreachable(r.Admin.addr, err)
	}
	return r.judgeStart(ctx, state, stats)
}

func unreachable(addr string, err error) string {
	switch {
	case NotListening(err):
		return fmt.Sprintf("Envoy does not listen on its admin address %s yet, or is gone", addr)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("Envoy does not answer on its admin address %s in time", addr)
	}
	return err.Error()
}

const readinessStats = `^(cluster_manager\.(cds\.update_(success|rejected)|warming_clusters)` +
	`|listener_manager\.(lds\.update_(success|rejected)|workers_started)` +
	`|control_plane\.connected_state|cluster\..*\.warming_state)$`

// judgeStart looks at what an Envoy goes through on its way to LIVE, in that order.
func (r *Readiness) judgeStart(ctx context.Context, state string, stats map[string]uint64) string {
	prefix := "Envoy is " + state + ": "
	switch {
	case r.Dynamic && stats["cluster_manager.cds.update_success"] == 0:
		return prefix + missing("clusters", "cluster_manager.cds", stats)
	case state != "LIVE" && stats["cluster_manager.warming_clusters"] > 0:
		return prefix + warming(stats)
	case r.Dynamic && stats["listener_manager.lds.update_success"] == 0:
		return prefix + missing("listeners", "listener_manager.lds", stats)
	case state != "LIVE":
		return prefix + r.unready(ctx)
	case stats["listener_manager.workers_started"] == 0:
		return prefix + "worker threads not yet started"
	}
	return ""
}

// missing says why a kind of resource was not yet accepted. A bootstrap may leave the connection's state out of the
// statistics: that is no sign of a broken connection.
func missing(kind, prefix string, stats map[string]uint64) string {
	if n := stats[prefix+".update_rejected"]; n > 0 {
		return fmt.Sprintf("%s received and rejected (%d times): Envoy's log tells why", kind, n)
	}
	if connected, known := stats["control_plane.connected_state"]; known && connected == 0 {
		return kind + " not yet received: no connection to the control plane"
	}
	return kind + " not yet received from the control plane"
}

// warming says which clusters are waited for, as far as the statistics have them.
func warming(stats map[string]uint64) string {
	var names []string
	for stat, value := range stats {
		if name, ok := strings.CutSuffix(stat, ".warming_state"); ok && value > 0 {
			names = append(names, strings.TrimPrefix(name, "cluster."))
		}
	}
	slices.Sort(names)
	return fmt.Sprintf("waiting for %d cluster(s) to get endpoints or certificates%s", stats["cluster_manager.warming_clusters"], listed(names))
}

// unready names what Envoy's own bookkeeping waits for, as far as it tells: "RdsRouteConfigSubscription RDS init …".
func (r *Readiness) unready(ctx context.Context) string {
	var wire struct {
		Dumps []struct {
			Targets []string `json:"target_names"`
		} `json:"unready_targets_dumps"`
	}
	if r.Admin.getJSON(ctx, "/init_dump", nil, mostAnswer, &wire) != nil {
		return "still starting"
	}
	var names []string
	for _, d := range wire.Dumps {
		for _, t := range d.Targets {
			names = append(names, strings.TrimPrefix(strings.TrimPrefix(t, "shared "), "target "))
		}
	}
	if len(names) == 0 {
		return "still starting"
	}
	return "waiting for routes or certificates of listeners" + listed(names)
}

func listed(names []string) string {
	switch n := len(names); {
	case n == 0:
		return ""
	case n > 5:
		names = append(names[:5:5], fmt.Sprintf("and %d more", n-5))
	}
	return " (" + strings.Join(names, ", ") + ")"
}
