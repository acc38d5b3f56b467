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
	// usageHistoryFile, in the state directory, stores the usage history. Like lastGoodFile, it has no extension.
	usageHistoryFile = "learned"
	// maxUsageAge is how long an entry remains after the workload's last request for it.
	maxUsageAge = 14 * 24 * time.Hour
	// maxWorkloadUsage limits the number of entries of one workload. maxTotalUsage limits the number of entries of all
	// workloads.
	maxWorkloadUsage = 1000
	maxTotalUsage    = 200_000
)

// usageHistory stores which clusters and virtual hosts each workload requested, and the time of the last request. The
// control plane sends these resources immediately to new instances of the workload. It stores only the requests of
// authenticated proxies, because other proxies could change another workload's history. Its methods accept a nil
// *usageHistory, which proxies without an identity have.
type usageHistory struct {
	now  func() time.Time
	file stateFile

	mu        sync.Mutex
	workloads map[string]map[string]time.Time
	size      int // number of entries of all workloads
}

// openUsageHistory reads the history from the file path. If the file cannot be read, it logs a warning and returns an
// empty history.
func openUsageHistory(path string, now func() time.Time, log *slog.Logger) *usageHistory {
	l := &usageHistory{
		now:       now,
		file:      newStateFile(path, "writing the usage history of workloads failed; after a restart, workloads request their resources on demand again", log),
		workloads: map[string]map[string]time.Time{},
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &l.workloads)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("reading the usage history of workloads failed; workloads request their resources on demand again", "file", path, "error", err)
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

// recentNames returns the names that workload requested within maxUsageAge. It deletes older entries.
func (l *usageHistory) recentNames(workload string) []string {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	names := l.workloads[workload]
	for name, requested := range names {
		if l.now().Sub(requested) > maxUsageAge {
			delete(names, name)
			l.size--
			l.file.schedule()
		}
	}
	if len(names) == 0 {
		delete(l.workloads, workload)
	}
	return slices.Sorted(maps.Keys(names))
}

func (l *usageHistory) record(workload, name string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.workloads[workload][name]
	if !known {
		if len(l.workloads[workload]) >= maxWorkloadUsage {
			return
		}
		for l.size >= maxTotalUsage {
			l.removeOldest()
		}
		l.size++
		name = strings.Clone(name)
	}
	if l.workloads[workload] == nil {
		l.workloads[workload] = map[string]time.Time{}
	}
	l.workloads[workload][name] = l.now()
	l.file.schedule()
}

// removeOldest deletes all entries of the workload that has sent no request for the longest time, because it may no
// longer exist.
func (l *usageHistory) removeOldest() {
	oldest, when := "", time.Time{}
	for workload, names := range l.workloads {
		last := time.Time{}
		for _, requested := range names {
			if requested.After(last) {
				last = requested
			}
		}
		if oldest == "" || last.Before(when) {
			oldest, when = workload, last
		}
	}
	l.size -= len(l.workloads[oldest])
	delete(l.workloads, oldest)
}

// run writes the history to the file after changes, until ctx ends.
func (l *usageHistory) run(ctx context.Context) { l.file.run(ctx, l.encode) }

func (l *usageHistory) encode() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.Marshal(l.workloads)
}
