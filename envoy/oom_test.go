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
		t.Errorf("it is told as %q", e)
	}
}

// limitedCgroup makes a cgroup with a memory limit and gives the file by which to join it.
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
		if set(filepath.Join(dir, kind.limit), limit) != nil {
			_ = os.Remove(dir)
			continue
		}
		_ = set(filepath.Join(dir, kind.swap), 0)
		t.Cleanup(func() {
			eventually(t, "an empty cgroup", func() bool { return os.Remove(dir) == nil })
		})
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Skip("no cgroup with a memory limit can be made here (root and a writable cgroup file system are needed)")
	return ""
}

// set writes to a file that is there: a folder that is no cgroup has none.
func set(file string, value int) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(f, value)
	return errors.Join(err, f.Close())
}

// counts is a kernel that tells one count after the other, and goes on telling the last; -1 is none.
func counts(told ...int) oomCounter {
	return func() (uint64, string, bool) {
		n := told[0]
		if len(told) > 1 {
			told = told[1:]
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
		{"count gone", 4, -1, false},
		{"a count that appears late", -1, 4, true}, // it starts from 0
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchOOM(counts(c.before, c.after), time.Hour)
			w.stop()
			if got := w.evidence(); (got != "") != c.oom {
				t.Errorf("evidence %q, want some: %v", got, c.oom)
			}
		})
	}
}

func TestEarlierDeathOfANeighbourIsNotTakenForEnvoys(t *testing.T) {
	w := &oomWatch{counter: counts(0, 1)}
	for range 2 {
		w.look()
	}
	if w.before != 0 {
		t.Error("a look between the kill and the end would lose the evidence")
	}
	w.look()
	if got := w.evidence(); got != "" {
		t.Errorf("evidence %q of a death two looks ago", got)
	}
}

func TestAKernelThatDoesNotTellTheCountHoldsNothingUp(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	w := watchOOM(func() (uint64, string, bool) { <-never; return 0, "", false }, time.Hour)
	w.stop()
	if got := w.evidence(); got != "" {
		t.Errorf("evidence %q", got)
	}
}
