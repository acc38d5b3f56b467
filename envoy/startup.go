package envoy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const readinessStats = `^(cluster_manager\.(cds\.update_(success|rejected)|warming_clusters)` +
	`|listener_manager\.(lds\.update_(success|rejected)|workers_started)` +
	`|control_plane\.connected_state|cluster\..*\.warming_state)$`

// judgeStart looks at what an Envoy goes through on its way to LIVE, in that order.
func (r *Readiness) judgeStart(ctx context.Context, state string, stats map[string]uint64) health.Condition {
	var c health.Condition
	switch {
	case r.Dynamic && stats["cluster_manager.cds.update_success"] == 0:
		c = missing("clusters", "cluster_manager.cds", state, stats)
	case state != "LIVE" && stats["cluster_manager.warming_clusters"] > 0:
		c = warming(stats)
	case r.Dynamic && stats["listener_manager.lds.update_success"] == 0:
		c = missing("listeners", "listener_manager.lds", state, stats)
	case state != "LIVE":
		c = r.unready(ctx)
	case stats["listener_manager.workers_started"] == 0:
		c.Reason = "worker threads not yet started"
	default:
		return health.Well
	}
	c.Reason = "Envoy is " + state + ": " + c.Reason
	return c
}

// leftOut tells of a running Envoy whose bootstrap keeps from its statistics what would show that it has its resources.
func leftOut(prefix, state string, stats map[string]uint64) (c health.Condition, ok bool) {
	if _, known := stats[prefix+".update_success"]; known || state != "LIVE" {
		return c, false
	}
	return health.Condition{
		Reason: "its statistics leave out " + prefix + ".update_success, by which it is known to have its configuration",
		Remedy: "have stats_matcher of the bootstrap include the prefixes cluster_manager, listener_manager and listener.",
	}, true
}

// missing says why a kind of resource was not yet accepted. A bootstrap may leave the connection's state out of the
// statistics: that is no sign of a broken connection.
func missing(kind, prefix, state string, stats map[string]uint64) health.Condition {
	if c, ok := leftOut(prefix, state, stats); ok {
		return c
	}
	if n := stats[prefix+".update_rejected"]; n > 0 {
		return health.Condition{
			Reason: fmt.Sprintf("%s received and rejected (%d times): Envoy's log tells why", kind, n),
			Remedy: "mend the configuration that Envoy's log names; the control plane sends it anew",
		}
	}
	if connected, known := stats["control_plane.connected_state"]; known && connected == 0 {
		return health.Condition{
			Reason: kind + " not yet received: no connection to the control plane",
			Remedy: "see that the control plane runs and can be reached from here",
		}
	}
	return health.Condition{
		Reason: kind + " not yet received from the control plane",
		Remedy: "see the control plane's log for this proxy, if this lasts",
	}
}

// warming says which clusters are waited for, as far as the statistics have them.
func warming(stats map[string]uint64) health.Condition {
	var names []string
	for stat, value := range stats {
		if name, ok := strings.CutSuffix(stat, ".warming_state"); ok && value > 0 {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "cluster."), ";")) // which control planes add to names in statistics
		}
	}
	slices.Sort(names)
	return health.Condition{
		Reason: fmt.Sprintf("waiting for %d cluster(s) to get endpoints or certificates%s", stats["cluster_manager.warming_clusters"], listed(names)),
		Remedy: "see that the control plane knows these clusters, and that certificates are there",
	}
}

// unready names what Envoy's own bookkeeping waits for, as far as it tells: "RdsRouteConfigSubscription RDS init …".
func (r *Readiness) unready(ctx context.Context) health.Condition {
	var wire struct {
		Dumps []struct {
			Targets []string `json:"target_names"`
		} `json:"unready_targets_dumps"`
	}
	if r.Admin.getJSON(ctx, "/init_dump", nil, mostAnswer, &wire) != nil {
		return health.Condition{Reason: "still starting"}
	}
	var names []string
	for _, d := range wire.Dumps {
		for _, t := range d.Targets {
			names = append(names, strings.TrimPrefix(strings.TrimPrefix(t, "shared "), "target "))
		}
	}
	if len(names) == 0 {
		return health.Condition{Reason: "still starting"}
	}
	return health.Condition{
		Reason: "waiting for routes or certificates of listeners" + listed(names),
		Remedy: "see that the control plane has these routes, and that certificates are there",
	}
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
