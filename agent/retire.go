package agent

import (
	"context"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

const (
	// quiet is for how long the new Envoy has to report no connection of the old one: it learns of them each time it
	// flushes its statistics, every 5 seconds unless told otherwise.
	quiet = 12 * time.Second
	// quietSelf is for how long an old Envoy that can be asked itself has to report none.
	quietSelf  = time.Second
	retirePoll = 500 * time.Millisecond
	// besides is how long an old Envoy takes new connections while it tells its clients to go.
	besides = time.Second
	// retireStop is what an old Envoy has to end after SIGTERM.
	retireStop = 5 * time.Second
)

// retire lets the old Envoy finish what it has and ends it. It says why it did not wait any longer.
func (t *takeover) retire(young, old *instance) (why string) {
	ctx, cancel := context.WithTimeout(context.Background(), t.keep())
	defer cancel()
	old.enter(Draining)
	if t.way == handOver {
		t.drainOld(ctx, old)
	}
	why = t.awaitLeaving(ctx, young, old)
	old.enter(Stopping)
	stop, cancelStop := context.WithTimeout(context.Background(), retireStop)
	defer cancelStop()
	exit := old.process.Stop(stop)
	old.leave(t.Logger)
	t.Logger.Info("the old Envoy has ended", "version", old.binary.Version, "pid", old.process.PID(), "because", why, "exit", exit.String())
	if young.admin.Address() != t.bootstrap.AdminAddress() {
		t.forwardAdmin(t.upgrades.late)
	}
	return why
}

// drainOld tells the clients of all listeners to go, and leaves new ones to the new Envoy.
func (t *takeover) drainOld(ctx context.Context, old *instance) {
	for _, d := range []envoy.Drain{{Graceful: true}, {}} {
		call, cancel := context.WithTimeout(ctx, drainCallTime)
		if err := old.admin.DrainListeners(call, d); err != nil {
			t.Logger.Warn("the old Envoy was not told to drain", "error", err)
		}
		cancel()
		if d.Graceful && !sleep(ctx, besides) {
			return
		}
	}
}

// awaitLeaving waits until the old Envoy has nothing left to do, or is out of time.
func (t *takeover) awaitLeaving(ctx context.Context, young, old *instance) string {
	idle, stopCounting := t.watchIdle(ctx, young, old)
	defer stopCounting()
	select {
	case <-old.process.Done():
		return "it ended by itself"
	case <-idle:
		return "no connection was left"
	case <-ctx.Done():
		return "its time was over"
	case <-t.upgrades.life.Done():
	}
	select {
	case <-old.process.Done():
	case <-idle:
	case <-ctx.Done():
	case <-young.process.Done():
	case <-t.Hasten:
	case <-t.orders.quit.done():
	}
	return "the agent is ending"
}

// watchIdle tells when the old Envoy has had no connection for a while.
func (t *takeover) watchIdle(ctx context.Context, young, old *instance) (idle <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		enough := quiet
		if t.way == handOver {
			enough = quietSelf
		}
		for since := time.Now(); sleep(ctx, retirePoll); {
			if n, err := t.leftovers(ctx, young, old); err != nil || n > 0 {
				since = time.Now()
			} else if time.Since(since) > enough {
				close(found)
				return
			}
		}
	}()
	return found, func() { cancel(); <-done }
}

// leftovers counts the connections of the old Envoy. After a hot restart only the new one knows them.
func (t *takeover) leftovers(ctx context.Context, young, old *instance) (uint64, error) {
	if t.way == handOver {
		left, err := old.load(ctx, t.own)
		return left.connections + left.requests, err
	}
	stats, err := young.admin.Stats(ctx, `^server\.parent_connections$`)
	return stats["server.parent_connections"], err
}
