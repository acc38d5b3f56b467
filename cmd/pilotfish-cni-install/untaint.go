package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// readyEvery is how often it is looked whether the agent is ready.
	readyEvery = 500 * time.Millisecond
	// taintEvery is how often a node is looked at that had no such taint any more: it may have been registered anew.
	taintEvery = time.Minute
	// taintTime bounds a look at it.
	taintTime = 10 * time.Second
)

// untainter takes a taint from this node once the agent is ready: with it a new node has no pods of the mesh before they
// would be captured.
type untainter struct {
	node, taint string
	api         interface {
		RemoveTaints(ctx context.Context, node, name string) (bool, error)
	}
	ready  health.Check
	logger *slog.Logger
}

func (u *untainter) run(ctx context.Context) error {
	backoff := &dial.Backoff{Min: time.Second, Max: 30 * time.Second}
	told := ""
	for {
		wait := readyEvery
		if u.ready().OK {
			wait = taintEvery
			if err := u.once(ctx); err != nil {
				wait = backoff.Next()
				if ctx.Err() == nil && told != err.Error() {
					told = err.Error()
					u.logger.Warn("the node keeps its taint, so that pods without a toleration of it stay away", "taint", u.taint, "error", err,
						"remedy", "give the service account the rights to get and patch nodes, as examples/cni/untaint.yaml does; kubectl taint nodes "+u.node+" "+u.taint+"- takes it away by hand")
				}
			} else {
				backoff.Reset()
				told = ""
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (u *untainter) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, taintTime)
	defer cancel()
	removed, err := u.api.RemoveTaints(ctx, u.node, u.taint)
	if removed {
		u.logger.Info("the agent is ready, and the node's taint is taken away", "node", u.node, "taint", u.taint)
	}
	return err
}
