package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	name := "pilotfish-test-" + strings.ReplaceAll(t.Name(), "/", "-")
	for _, kind := range []struct{ dir, limit, swap string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
	} {
		dir := filepath.Join(kind.dir, name)
		if os.Mkdir(dir, 0o755) != nil {
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

func TestSIGKILLWithoutARisenCountIsNotOOM(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		oom                 bool
	}{
		{"v2, killed", "low 0\noom 1\noom_kill 4\noom_group_kill 0\n", "low 0\noom 2\noom_kill 5\n", true},
		{"v1, killed", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true},
		{"as before", "oom_kill 4\n", "oom_kill 4\n", false},
		{"count gone", "oom_kill 4\n", "", false},
		{"no count", "", "oom_kill 4\n", true}, // a file that appears late starts from 0
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "memory.events")
			write(t, file, c.before)
			w := watchOOM(oomCounter{file}, time.Hour)
			write(t, file, c.after)
			if got := w.stop(); (got != "") != c.oom {
				t.Errorf("evidence %q, want some: %v", got, c.oom)
			}
		})
	}
}

func TestEarlierDeathOfANeighbourIsNotTakenForEnvoys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.events")
	write(t, file, "oom_kill 0\n")
	w := watchOOM(oomCounter{file}, time.Hour)
	write(t, file, "oom_kill 1\n")
	w.refresh()
	if w.before != 0 {
		t.Error("a look between the kill and the end would lose the evidence")
	}
	w.refresh()
	if got := w.stop(); got != "" {
		t.Errorf("evidence %q of a death two looks ago", got)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCounterIsLookedForWhereTheCgroupIsMounted(t *testing.T) {
	for _, c := range []struct {
		name, groups, mounts string
		want                 []string
	}{
		{
			"v2 with a cgroup namespace", "0::/\n",
			"30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n",
			[]string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.events"},
		},
		{
			"v2 on a host", "0::/system.slice/agent.service\n",
			"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			[]string{"/sys/fs/cgroup/system.slice/agent.service/memory.events", "/sys/fs/cgroup/system.slice/agent.service/memory.events", "/sys/fs/cgroup/memory.events"},
		},
		{
			"v1 in a container that sees only its own part", "4:memory:/kubepods/pod1/c1\n3:cpu,cpuacct:/kubepods\n",
			"35 31 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			[]string{"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/kubepods/pod1/c1/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"},
		},
		{"none", "", "", nil},
	} {
		if got := oomCounterPaths(c.groups, c.mounts); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func FuzzCgroupFiles(f *testing.F) {
	f.Add("0::/a\n4:memory:/b\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", []byte("oom_kill 3\n"))
	f.Fuzz(func(_ *testing.T, groups, mounts string, events []byte) {
		oomCounterPaths(groups, mounts)
		parseOOMCount(events)
	})
}
