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
	"strings"
	"sync"
	"time"
)

const (
	// learnedFile is in the state directory, and like lastGoodFile has no ending.
	learnedFile = "learned"
	// learnedFor is how long a workload starts with a cluster that it asked for last; then it has to ask again.
	learnedFor = 14 * 24 * time.Hour
	// maxLearned bounds the clusters that are remembered of a workload, and maxLearnedOfAll those of all.
	maxLearned      = 1000
	maxLearnedOfAll = 200_000
)

// learned is which clusters each workload was seen to ask for, and when last: what its instances start with. A nil one is of
// a proxy that proved no identity: it knows nothing and learns nothing, or anybody could fill another workload's.
type learned struct {
	now  func() time.Time
	file stateFile

	mu        sync.Mutex
	workloads map[string]map[string]time.Time
	size      int // clusters of all workloads
}

// openLearned reads what was learned before; what cannot be read is learned again.
func openLearned(path string, now func() time.Time, log *slog.Logger) *learned {
	l := &learned{
		now:       now,
		file:      newStateFile(path, "what workloads were seen to use is not kept: after a restart they ask for it again", log),
		workloads: map[string]map[string]time.Time{},
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &l.workloads)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("what workloads were seen to use cannot be read: they ask for it again", "file", path, "error", err)
		l.workloads = nil
	}
	if l.workloads == nil {
		l.workloads = map[string]map[string]time.Time{}
	}
	for _, names := range l.workloads {
		l.size += len(names)
	}
	return l
}

// of gives what the workload asked for not too long ago.
func (l *learned) of(workload string) []string {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	names := l.workloads[workload]
	for name, asked := range names {
		if l.now().Sub(asked) > learnedFor {
			delete(names, name)
			l.size--
			l.file.note()
		}
	}
	if len(names) == 0 {
		delete(l.workloads, workload)
	}
	return slices.Sorted(maps.Keys(names))
}

func (l *learned) note(workload, name string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.workloads[workload][name]
	if !known {
		if len(l.workloads[workload]) >= maxLearned {
			return
		}
		for l.size >= maxLearnedOfAll {
			l.forgetOldest()
		}
		l.size++
		name = strings.Clone(name)
	}
	if l.workloads[workload] == nil {
		l.workloads[workload] = map[string]time.Time{}
	}
	l.workloads[workload][name] = l.now()
	l.file.note()
}

// forgetOldest makes room: workloads come and go, and one that asked for nothing for the longest time may be gone.
func (l *learned) forgetOldest() {
	oldest, when := "", time.Time{}
	for workload, names := range l.workloads {
		last := time.Time{}
		for _, asked := range names {
			if asked.After(last) {
				last = asked
			}
		}
		if oldest == "" || last.Before(when) {
			oldest, when = workload, last
		}
	}
	l.size -= len(l.workloads[oldest])
	delete(l.workloads, oldest)
}

// run keeps the file, until the context ends.
func (l *learned) run(ctx context.Context) { l.file.run(ctx, l.encode) }

func (l *learned) encode() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.Marshal(l.workloads)
}
