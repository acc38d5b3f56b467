package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// asMember is an environment variable. If it is set, the test binary joins cgroups and prints their limits.
const asMember = "PILOTFISH_TEST_CGROUP_MEMBER"

type seen struct {
	Memory, Usage uint64
	CPU           float64
	OOMFile       string
}

func TestMain(m *testing.M) {
	if procs := os.Getenv(asMember); procs != "" {
		printLimits(filepath.SplitList(procs))
		return
	}
	os.Exit(m.Run())
}

// printLimits joins groups and prints their limits.
func printLimits(procs []string) {
	for _, file := range procs {
		if err := write(file, fmt.Sprint(os.Getpid())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var s seen
	s.Memory, _ = Self().MemoryLimit()
	s.Usage, _ = Self().MemoryUsage()
	s.CPU, _ = Self().CPULimit()
	_, s.OOMFile, _ = Self().OOMKills()
	_ = json.NewEncoder(os.Stdout).Encode(s)
}

func TestARealGroupsLimitsAreSeenByItsMember(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("cgroups are Linux's")
	}
	procs := limited(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asMember+"="+procs)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var s seen
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if s.Memory != 256<<20 || s.CPU != 1.5 || s.Usage == 0 || s.Usage > s.Memory || s.OOMFile == "" {
		t.Errorf("a member of a group with 256 MiB and 1.5 processors sees %+v", s)
	}
}

// limited creates a group with 256 MiB and 1.5 CPUs, in v2 or in the two trees of v1, and returns the files through
// which a process joins it.
func limited(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("pilotfish-test-cgroup-%d", os.Getpid())
	v2 := filepath.Join("/sys/fs/cgroup", name)
	if makeGroup(t, v2, map[string]string{"memory.max": "268435456", "cpu.max": "150000 100000"}) {
		return filepath.Join(v2, "cgroup.procs")
	}
	mem, cpu := filepath.Join("/sys/fs/cgroup/memory", name), filepath.Join("/sys/fs/cgroup/cpu", name)
	if makeGroup(t, mem, map[string]string{"memory.limit_in_bytes": "268435456"}) &&
		makeGroup(t, cpu, map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}) {
		return filepath.Join(mem, "cgroup.procs") + string(filepath.ListSeparator) + filepath.Join(cpu, "cgroup.procs")
	}
	t.Skip("creating a cgroup requires root and a writable cgroup file system")
	return ""
}

func makeGroup(t *testing.T, dir string, limits map[string]string) bool {
	t.Helper()
	if os.Mkdir(dir, 0o755) != nil {
		return false
	}
	for file, value := range limits {
		if write(filepath.Join(dir, file), value) != nil {
			_ = os.Remove(dir)
			return false
		}
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	return true
}

// write writes to an existing file. A directory that is not a cgroup does not contain such files.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func FuzzKernelFiles(f *testing.F) {
	f.Add("0::/a\n", v2Mount, "max", "max 100000")
	f.Add("4:memory:/a\n1:cpu,cpuacct:/\n", v1Mount, "1", "100000")
	f.Add("0::/..\n", `1 1 1 \040 \134 - cgroup2 x y`, "-1", "1 0")
	f.Fuzz(func(t *testing.T, groups, mounts, limit, quota string) {
		groupPath(groups, unified)
		groupMount(mounts, memory)
		parseOOMKills(limit)
		if share(limit, quota) < 0 {
			t.Errorf("the limit for %q of %q is negative", limit, quota)
		}
	})
}
