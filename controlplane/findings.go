package controlplane

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

const (
	// findingsPause is how long changes have to pause before the documents are compared with each other for the log. That
	// reads all of them, and must not hold up what is sent to the proxies.
	findingsPause = 200 * time.Millisecond
	// passing is how long workloads may be away before it is told that a document is about none: they come and go.
	passing = 10 * time.Second
)

// ofWorkloads are the findings that depend on which workloads are there at the moment.
var ofWorkloads = []config.Code{
	config.SubsetWithoutEndpoints, config.SelectsNothing, config.MutualToPlaintext, config.StrictWithoutSidecar, config.UnknownIdentity,
}

// findings tells what is wrong with the documents as compared with each other.
type findings struct {
	store  config.Store
	latest func() *snapshot.Snapshot
	// written are the problems of documents by themselves.
	written func() []config.Problem
	log     *slog.Logger
	wake    chan struct{} // a snapshot was built; holds one

	mu    sync.Mutex
	since map[config.Problem]time.Time // of those that may pass
	found map[finding]int              // when it was last looked

	told map[config.Problem]bool // that were logged and still are; of the goroutine that logs
}

// note says that there is a new snapshot. It does not block.
func (f *findings) note() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run logs what is new, until the context ends.
func (f *findings) run(ctx context.Context) {
	again := time.NewTimer(passing)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-again.C:
		}
		select { // collect what follows
		case <-ctx.Done():
			return
		case <-time.After(findingsPause):
		}
		problems := f.problems()
		f.count(problems)
		f.tell(problems)
		again.Reset(passing + time.Second) // what may pass is looked at again when it has had its time
	}
}

// count keeps how many there are of what.
func (f *findings) count(problems []config.Problem) {
	found := map[finding]int{}
	for _, p := range slices.Concat(problems, f.written()) {
		found[finding{p.Code, p.Severity}]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = found
}

// counts are how many findings there were when the documents were last compared.
func (f *findings) counts() map[finding]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// tell logs the problems that are new.
func (f *findings) tell(problems []config.Problem) {
	still := make(map[config.Problem]bool, len(problems))
	for _, p := range problems {
		still[p] = true
		if f.told[p] {
			continue
		}
		level := slog.LevelWarn
		if p.Severity == config.Info {
			level = slog.LevelDebug
		}
		f.log.Log(context.Background(), level, "configuration", config.ProblemAttr, p.String())
	}
	f.told = still
}

// problems are those of the newest snapshot, without those that may pass by themselves.
func (f *findings) problems() []config.Problem {
	latest := f.latest()
	if latest == nil {
		return nil
	}
	return f.settled(config.Unsuppressed(latest.Problems(), f.store), time.Now())
}

func (f *findings) settled(problems []config.Problem, now time.Time) []config.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.since
	f.since = map[config.Problem]time.Time{}
	return slices.DeleteFunc(problems, func(p config.Problem) bool {
		if !slices.Contains(ofWorkloads, p.Code) {
			return false
		}
		first, ok := before[p]
		if !ok {
			first = now
		}
		f.since[p] = first
		return now.Sub(first) < passing
	})
}
