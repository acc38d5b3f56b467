package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// learnedFile is in the state directory, and like lastGoodFile has no ending.
	learnedFile = "learned"
	// learnedFor is how long a workload starts with a cluster that it asked for last; then it has to ask again.
	learnedFor = 14 * 24 * time.Hour
	// maxLearned bounds the clusters that are remembered of a workload, and maxWorkloads the workloads.
	maxLearned   = 1000
	maxWorkloads = 10_000
	// learnedEvery is how often what was learned is written.
	learnedEvery = time.Second
)

// learned is which clusters each workload was seen to ask for, and when last: what its instances start with.
type learned struct {
	path string
	now  func() time.Time
	log  *slog.Logger

	mu        sync.Mutex
	workloads map[string]map[string]time.Time
	dirty     bool
}

// openLearned reads what was learned before; what cannot be read is learned again.
func openLearned(path string, now func() time.Time, log *slog.Logger) *learned {
	l := &learned{path: path, now: now, log: log, workloads: map[string]map[string]time.Time{}}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &l.workloads)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("what workloads were seen to use cannot be read: they ask for it again", "file", path, "error", err)
		l.workloads = map[string]map[string]time.Time{}
	}
	return l
}

// of gives what the workload asked for not too long ago.
func (l *learned) of(workload string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := l.workloads[workload]
	for name, asked := range names {
		if l.now().Sub(asked) > learnedFor {
			delete(names, name)
			l.dirty = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (l *learned) note(workload, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := l.workloads[workload]
	if names == nil {
		if len(l.workloads) >= maxWorkloads {
			return
		}
		names = map[string]time.Time{}
		l.workloads[workload] = names
	}
	if _, known := names[name]; !known && len(names) >= maxLearned {
		return
	}
	names[name] = l.now()
	l.dirty = true
}

// run writes what was learned, until the context ends and then once more.
func (l *learned) run(ctx context.Context) {
	tick := time.NewTicker(learnedEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.write()
			return
		case <-tick.C:
			l.write()
		}
	}
}

func (l *learned) write() {
	l.mu.Lock()
	if !l.dirty {
		l.mu.Unlock()
		return
	}
	l.dirty = false
	data, err := json.Marshal(l.workloads)
	l.mu.Unlock()
	next := l.path + ".new"
	if err == nil {
		err = os.WriteFile(next, data, 0o600)
	}
	if err == nil {
		err = os.Rename(next, l.path)
	}
	if err != nil {
		l.log.Warn("what workloads were seen to use is not kept: after a restart they ask for it again", "file", l.path, "error", err)
	}
}
