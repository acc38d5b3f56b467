package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEnvoyKilledByOOMIsReportedAsOOM(t *testing.T) {
	procs := limitedCgroup(t, 64<<20)
	cmd := helper(t, "starve", procs)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var e Exit
	if err := json.Unmarshal(out, &e); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if e.Reason != OOMKilled || e.ExitCode() != 137 || !strings.Contains(e.Evidence, "rose from 0 to 1") {
		t.Errorf("Exit = %+v, want oom-killed with evidence", e)
	}
	if !strings.Contains(e.String(), "lack of memory") || !strings.Contains(e.String(), "higher memory limit") {
		t.Errorf("it is reported as %q", e)
	}
}

// limitedCgroup creates a cgroup with a memory limit and returns its cgroup.procs.
func limitedCgroup(t *testing.T, limit int) string {
	t.Helper()
	for _, kind := range []struct{ dir, limit, swap string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
	} {
		dir, err := os.MkdirTemp(kind.dir, "pilotfish-test-")
		if err != nil {
			continue
		}
		if writeExisting(filepath.Join(dir, kind.limit), limit) != nil {
			_ = os.Remove(dir)
			continue
		}
		_ = writeExisting(filepath.Join(dir, kind.swap), 0)
		t.Cleanup(func() {
			eventually(t, "an empty cgroup", func() bool { return os.Remove(dir) == nil })
		})
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Skip("no cgroup with a memory limit can be made here (root and a writable cgroup file system are needed)")
	return ""
}

// writeExisting writes to an existing control file. It fails in a directory that is not a cgroup, because the file is
// missing there.
func writeExisting(file string, value int) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(f, value)
	return errors.Join(err, f.Close())
}

// fakeCounter returns one count per call, and then repeats the last; -1 means no count.
func fakeCounter(counts ...int) oomCounter {
	return func() (uint64, string, bool) {
		n := counts[0]
		if len(counts) > 1 {
			counts = counts[1:]
		}
		return uint64(max(n, 0)), "memory.events", n >= 0
	}
}

func TestSIGKILLWithoutARisenCountIsNotOOM(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after int
		oom           bool
	}{
		{"killed", 4, 5, true},
		{"as before", 4, 4, false},
		{"count missing", 4, -1, false},
		{"a count that appears late", -1, 4, true}, // the counter starts at 0
	} {
		t.Run(c.name, func(t *testing.T) {
			w := startOOMWatcher(fakeCounter(c.before, c.after), time.Hour)
			w.stop()
			if got := w.evidence(); (got != "") != c.oom {
				t.Errorf("evidence %q, want some: %v", got, c.oom)
			}
		})
	}
}

func TestEarlierOOMKillInCgroupIsNotAttributedToEnvoy(t *testing.T) {
	w := &oomWatcher{counter: fakeCounter(0, 1)}
	for range 2 {
		w.sample()
	}
	if w.previous != 0 {
		t.Error("a read of the count between the kill and the exit would lose the evidence")
	}
	w.sample()
	if got := w.evidence(); got != "" {
		t.Errorf("evidence %q of a kill two reads ago", got)
	}
}

func TestUnresponsiveKernelCountDoesNotBlock(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	w := startOOMWatcher(func() (uint64, string, bool) { <-never; return 0, "", false }, time.Hour)
	w.stop()
	if got := w.evidence(); got != "" {
		t.Errorf("evidence %q", got)
	}
}
