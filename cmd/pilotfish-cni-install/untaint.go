package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// readyInterval is the interval between checks of the agent's readiness.
	readyInterval = 500 * time.Millisecond
	// taintInterval is the interval between checks of the node after the taint was removed: the node may be registered
	// again with the taint.
	taintInterval = time.Minute
	// taintTimeout is the timeout of one check, including the removal of the taint.
	taintTimeout = 10 * time.Second
)

// untainter removes the taint from this node once the agent is ready. On a new node, the taint prevents Kubernetes from
// scheduling pods before the agent can redirect their traffic.
type untainter struct {
	node, taint string
	api         interface {
		RemoveTaints(ctx context.Context, node, name string) (bool, error)
	}
	ready  health.Check
	logger *slog.Logger
}

func (u *untainter) run(ctx context.Context) error {
	retry := &backoff.Backoff{Min: time.Second, Max: 30 * time.Second}
	logged := ""
	for {
		wait := readyInterval
		if u.ready().OK {
			wait = taintInterval
			if err := u.removeTaint(ctx); err != nil {
				wait = retry.Next()
				if ctx.Err() == nil && logged != err.Error() {
					logged = err.Error()
					u.logger.Warn("removing the node's taint failed; pods that do not tolerate the taint are not scheduled on this node", "taint", u.taint, "error", err,
						"remedy", "give the service account the rights to get and patch nodes, as examples/cni/untaint.yaml does; kubectl taint nodes "+u.node+" "+u.taint+"- removes it manually")
				}
			} else {
				retry.Reset()
				logged = ""
			}
		}
		if !backoff.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

func (u *untainter) removeTaint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, taintTimeout)
	defer cancel()
	removed, err := u.api.RemoveTaints(ctx, u.node, u.taint)
	if removed {
		u.logger.Info("the agent is ready; removed the node's taint", "node", u.node, "taint", u.taint)
	}
	return err
}
