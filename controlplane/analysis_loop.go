package controlplane

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// analysisPause is how long the analysis waits after a change. The analysis reads all documents, and must not delay
	// pushes.
	analysisPause = 200 * time.Millisecond
	// minFindingAge is how long a finding that depends on workloads must exist before it is reported. Workloads start
	// and stop often, and findings that result from this soon disappear.
	minFindingAge = 10 * time.Second
)

// workloadFindings are the codes of the findings that depend on which workloads run at the moment.
var workloadFindings = []config.Code{
	config.SubsetWithoutEndpoints, config.SelectsNothing, config.MutualToPlaintext, config.StrictWithoutSidecar, config.UnknownIdentity,
	config.PortNotExposed,
}

// analysisLoop analyses in the background how the documents affect each other. It logs and counts the findings.
type analysisLoop struct {
	store  config.Store
	latest func() *snapshot.Snapshot
	// documentProblems returns the findings that concern single documents.
	documentProblems func() []config.Problem
	log              *slog.Logger
	wake             chan struct{} // contains one element after a snapshot was built
	checker          analysis.Checker

	mu           sync.Mutex
	firstSeen    map[config.Problem]time.Time // first time of each workload-dependent finding
	latestCounts map[findingKey]int           // numbers of findings in the last analysis

	logged map[config.Problem]bool // findings that were logged and still exist; only the method run uses it
}

// schedule requests an analysis of the newest snapshot. It does not block.
func (f *analysisLoop) schedule() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run analyses the snapshots and logs new findings until the context ends.
func (f *analysisLoop) run(ctx context.Context) {
	again := time.NewTimer(minFindingAge)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-again.C:
		}
		if !backoff.Sleep(ctx, analysisPause) { // waits for further changes, to analyse them together
			return
		}
		problems := f.problems()
		f.updateCounts(problems)
		f.logNew(problems)
		again.Reset(minFindingAge + time.Second) // the next analysis reports findings that were too recent in this one
	}
}

// updateCounts stores the numbers of findings by code and severity. problems are the findings of the analysis;
// updateCounts adds those of single documents.
func (f *analysisLoop) updateCounts(problems []config.Problem) {
	found := map[findingKey]int{}
	for _, p := range slices.Concat(problems, f.documentProblems()) {
		found[findingKey{p.Code, p.Severity}]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latestCounts = found
}

// counts returns the numbers of findings after the last analysis.
func (f *analysisLoop) counts() map[findingKey]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latestCounts
}

// logNew logs the findings in problems that were not logged before.
func (f *analysisLoop) logNew(problems []config.Problem) {
	current := make(map[config.Problem]bool, len(problems))
	for _, p := range problems {
		current[p] = true
		if f.logged[p] {
			continue
		}
		level := slog.LevelWarn
		if p.Severity == config.Info {
			level = slog.LevelDebug
		}
		f.log.Log(context.Background(), level, "the configuration has a problem", config.ProblemAttr, p.String())
	}
	f.logged = current
}

// problems analyses the newest snapshot and returns the findings. It omits suppressed findings, and workload-dependent
// ones that are younger than minFindingAge.
func (f *analysisLoop) problems() []config.Problem {
	latest := f.latest()
	if latest == nil {
		return nil
	}
	problems := analysis.ExplainRefused(latest, f.checker.Check(latest), f.documentProblems())
	return f.withoutRecent(config.Unsuppressed(problems, f.store), time.Now())
}

func (f *analysisLoop) withoutRecent(problems []config.Problem, now time.Time) []config.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.firstSeen
	f.firstSeen = map[config.Problem]time.Time{}
	return slices.DeleteFunc(problems, func(p config.Problem) bool {
		if !slices.Contains(workloadFindings, p.Code) {
			return false
		}
		first, ok := before[p]
		if !ok {
			first = now
		}
		f.firstSeen[p] = first
		return now.Sub(first) < minFindingAge
	})
}
