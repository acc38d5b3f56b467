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

// evaluateStart checks the steps of Envoy's start in order. It returns the reason why the first incomplete step is not
// complete, or health.Healthy if all are complete.
func (r *Readiness) evaluateStart(ctx context.Context, state string, stats map[string]uint64) health.Condition {
	var c health.Condition
	switch {
	case r.Dynamic && stats["cluster_manager.cds.update_success"] == 0:
		c = describeMissing("clusters", "cluster_manager.cds", state, stats)
	case state != "LIVE" && stats["cluster_manager.warming_clusters"] > 0:
		c = describeWarming(stats)
	case r.Dynamic && stats["listener_manager.lds.update_success"] == 0:
		c = describeMissing("listeners", "listener_manager.lds", state, stats)
	case state != "LIVE":
		c = r.describeInit(ctx)
	case stats["listener_manager.workers_started"] == 0:
		c.Reason = "its worker threads have not started yet"
	default:
		return health.Healthy
	}
	c.Reason = "Envoy is " + state + ": " + c.Reason
	return c
}

// checkMissingStats returns an unhealthy condition and true if Envoy is LIVE, but its bootstrap excludes the statistics
// about accepted resources.
func checkMissingStats(prefix, state string, stats map[string]uint64) (c health.Condition, ok bool) {
	if _, known := stats[prefix+".update_success"]; known || state != "LIVE" {
		return c, false
	}
	return health.Condition{
		Reason: "Envoy's statistics do not include " + prefix + ".update_success, which shows whether Envoy has accepted its configuration",
		Remedy: "include in the bootstrap's stats_matcher the prefixes cluster_manager, listener_manager and listener",
	}, true
}

// describeMissing returns why Envoy has not accepted resources of a type yet. If the statistics exclude the state of
// the connection to the control plane, it assumes that the connection exists.
func describeMissing(kind, prefix, state string, stats map[string]uint64) health.Condition {
	if c, ok := checkMissingStats(prefix, state, stats); ok {
		return c
	}
	if n := stats[prefix+".update_rejected"]; n > 0 {
		return health.Condition{
			Reason: fmt.Sprintf("%s received and rejected (%d times): see Envoy's log for the reason", kind, n),
			Remedy: "fix the configuration that Envoy's log names; the control plane then sends it again",
		}
	}
	if connected, known := stats["control_plane.connected_state"]; known && connected == 0 {
		return health.Condition{
			Reason: kind + " not yet received: no connection to the control plane",
			Remedy: "check that the control plane is running and reachable",
		}
	}
	return health.Condition{
		Reason: kind + " not yet received from the control plane",
		Remedy: "if this persists, check the control plane's log for this proxy",
	}
}

// describeWarming returns a condition with the number of warming clusters, and with their names if the statistics
// contain them.
func describeWarming(stats map[string]uint64) health.Condition {
	var names []string
	for stat, value := range stats {
		if name, ok := strings.CutSuffix(stat, ".warming_state"); ok && value > 0 {
			// Control planes append ; to names in statistics.
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "cluster."), ";"))
		}
	}
	slices.Sort(names)
	return health.Condition{
		Reason: fmt.Sprintf("waiting for %d cluster(s) to get endpoints or certificates%s", stats["cluster_manager.warming_clusters"], formatNames(names)),
		Remedy: "check that the control plane has these clusters and that the certificates exist",
	}
}

// describeInit returns a condition with the names of the targets for which Envoy's init manager waits, for example
// "RdsRouteConfigSubscription RDS init …".
func (r *Readiness) describeInit(ctx context.Context) health.Condition {
	var wire struct {
		Dumps []struct {
			Targets []string `json:"target_names"`
		} `json:"unready_targets_dumps"`
	}
	if r.Admin.getJSON(ctx, "/init_dump", nil, maxResponse, &wire) != nil {
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
		Reason: "waiting for routes or certificates of listeners" + formatNames(names),
		Remedy: "check that the control plane has these routes and that the certificates exist",
	}
}

func formatNames(names []string) string {
	switch n := len(names); {
	case n == 0:
		return ""
	case n > 5:
		names = append(names[:5:5], fmt.Sprintf("and %d more", n-5))
	}
	return " (" + strings.Join(names, ", ") + ")"
}
