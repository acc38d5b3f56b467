package envoy

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// oomInterval is how often the kernel's count is looked at while Envoy runs, so that an earlier death in the same
// cgroup (the agent's neighbours share it) is not taken for Envoy's. Such deaths are rare, and each look wakes a
// processor in every pod.
const oomInterval = 5 * time.Minute

// oomCounter is a file in which the kernel counts the processes of a cgroup that were killed for lack of memory.
type oomCounter struct {
	path string
}

// read gives the count; 0 and false where there is none.
func (c oomCounter) read() (uint64, bool) {
	if c.path == "" {
		return 0, false
	}
	data, err := os.ReadFile(c.path)
	if err != nil {
		return 0, false
	}
	return parseOOMCount(data)
}

// parseOOMCount reads the line "oom_kill N" of memory.events (cgroup v2) or memory.oom_control (v1).
func parseOOMCount(data []byte) (uint64, bool) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// oomWatch compares the count at the end with the count shortly before.
type oomWatch struct {
	counter oomCounter
	quit    chan struct{}
	ended   sync.WaitGroup
	mu      sync.Mutex
	// The count one look ago and at the last look. The older one counts as "before": the last look may have come between
	// the kill and the end.
	before, last uint64
}

func watchOOM(c oomCounter, every time.Duration) *oomWatch {
	w := &oomWatch{counter: c, quit: make(chan struct{})}
	before, ok := c.read()
	if !ok {
		return w
	}
	w.before, w.last = before, before
	w.ended.Go(func() { w.follow(every) })
	return w
}

func (w *oomWatch) follow(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			w.refresh()
		}
	}
}

func (w *oomWatch) refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.counter.read(); ok {
		w.before, w.last = w.last, n
	}
}

// stop ends the watch and gives the evidence of a kill for lack of memory, or nothing.
func (w *oomWatch) stop() string {
	close(w.quit)
	w.ended.Wait()
	now, ok := w.counter.read()
	if !ok || now <= w.before {
		return ""
	}
	return fmt.Sprintf("oom_kill in %s rose from %d to %d", w.counter.path, w.before, now)
}

// cgroupOfSelf finds the counter of this process's cgroup, in which its children start.
func cgroupOfSelf() oomCounter {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return oomCounter{}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return oomCounter{}
	}
	for _, path := range oomCounterPaths(string(groups), string(mounts)) {
		c := oomCounter{path}
		if _, ok := c.read(); ok {
			return c
		}
	}
	return oomCounter{}
}

// oomCounterPaths lists where the counter may be: cgroup v2 first, then v1's memory controller; at the process's own
// path below the mount, and at the mount's root, which is what a container without a cgroup namespace sees as its own.
func oomCounterPaths(groups, mounts string) []string {
	var paths []string
	for _, kind := range []struct{ controller, fstype, file string }{
		{"", "cgroup2", "memory.events"},
		{"memory", "cgroup", "memory.oom_control"},
	} {
		own, ok := cgroupPath(groups, kind.controller)
		mount, root, mounted := cgroupMount(mounts, kind.fstype, kind.controller)
		if !ok || !mounted {
			continue
		}
		if below, inside := strings.CutPrefix(own, root); inside {
			paths = append(paths, filepath.Join(mount, below, kind.file))
		}
		paths = append(paths, filepath.Join(mount, own, kind.file), filepath.Join(mount, kind.file))
	}
	return paths
}

// cgroupPath finds a controller's path in /proc/self/cgroup ("4:memory:/path"); v2's line has no controller.
func cgroupPath(groups, controller string) (string, bool) {
	for line := range strings.SplitSeq(groups, "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) == 3 && hasOption(parts[1], controller) {
			return parts[2], true
		}
	}
	return "", false
}

// cgroupMount finds in /proc/self/mountinfo where a hierarchy is mounted, and which of its folders is the root there.
func cgroupMount(mounts, fstype, controller string) (mount, root string, ok bool) {
	for line := range strings.SplitSeq(mounts, "\n") {
		before, after, found := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(super) < 3 || super[0] != fstype {
			continue
		}
		if controller == "" || hasOption(super[2], controller) {
			return fields[4], strings.TrimSuffix(fields[3], "/"), true
		}
	}
	return "", "", false
}

// hasOption says whether a comma-separated list has an entry; the empty entry only fits the empty list.
func hasOption(list, wanted string) bool {
	for entry := range strings.SplitSeq(list, ",") {
		if entry == wanted {
			return true
		}
	}
	return false
}
