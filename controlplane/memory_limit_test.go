package controlplane

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestMemoryLimitIsTheMinimumOfTheCgroupAndItsParents(t *testing.T) {
	const none = math.MaxInt64
	for name, c := range map[string]struct {
		membership string
		files      map[string]string // below the root of the cgroup file system
		want       int64
	}{
		"version 2": {"0::/pod/container\n", map[string]string{"pod/container/memory.max": "1048576\n"}, 1 << 20},
		"version 2, the parent is smaller": {"0::/pod/container\n",
			map[string]string{"pod/container/memory.max": "2097152\n", "pod/memory.max": "1048576\n"}, 1 << 20},
		"version 2, the parent is larger": {"0::/pod/container\n",
			map[string]string{"pod/container/memory.max": "1048576\n", "pod/memory.max": "2097152\n"}, 1 << 20},
		"version 2, only the parent": {"0::/pod/container\n",
			map[string]string{"pod/container/memory.max": "max\n", "pod/memory.max": "1048576\n"}, 1 << 20},
		"version 2, the root of a cgroup namespace": {"0::/\n", map[string]string{"memory.max": "1048576\n"}, 1 << 20},
		"version 2, without a limit":                {"0::/pod\n", map[string]string{"pod/memory.max": "max\n"}, none},
		"version 2, another cgroup":                 {"0::/pod\n", map[string]string{"other/memory.max": "1048576\n"}, none},
		"version 1": {"12:cpu,cpuacct:/pod\n11:memory:/pod\n1:name=systemd:/pod\n",
			map[string]string{"memory/pod/memory.limit_in_bytes": "1048576\n"}, 1 << 20},
		"version 1, without a limit": {"11:memory:/pod\n",
			map[string]string{"memory/pod/memory.limit_in_bytes": "9223372036854771712\n"}, none},
		"version 1, only another controller": {"12:cpu:/pod\n", map[string]string{"memory/pod/memory.limit_in_bytes": "1048576\n"}, none},
		"both versions": {"11:memory:/pod\n0::/pod\n",
			map[string]string{"memory/pod/memory.limit_in_bytes": "1048576\n", "pod/memory.max": "2097152\n"}, 1 << 20},
		"no path outside the file system": {"0::/../../pod\n", map[string]string{"pod/memory.max": "1048576\n"}, 1 << 20},
		"no number":                       {"0::/pod\n", map[string]string{"pod/memory.max": "much\n"}, none},
		"zero":                            {"0::/pod\n", map[string]string{"pod/memory.max": "0\n"}, none},
		"negative":                        {"0::/pod\n", map[string]string{"pod/memory.max": "-1\n"}, none},
		"no membership":                   {"", map[string]string{"memory.max": "1048576\n"}, none},
		"an unknown format":               {"cgroup\n", map[string]string{"memory.max": "1048576\n"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			membership, root := filepath.Join(dir, "membership"), filepath.Join(dir, "root")
			writeFile(t, membership, c.membership)
			for path, text := range c.files {
				writeFile(t, filepath.Join(root, path), text)
			}
			if got := cgroupMemory(membership, root); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
		})
	}
	if got := cgroupMemory(filepath.Join(t.TempDir(), "absent"), t.TempDir()); got != none {
		t.Errorf("without the file of memberships the limit is %d", got)
	}
}

func TestMemoryLimitIsNotAboveTheLimitOfTheGoRuntime(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	outer := cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if outer == math.MaxInt64 {
		outer = defaultMemoryLimit
	}
	if got := memoryLimit(); got != outer {
		t.Errorf("without GOMEMLIMIT the limit is %d, want %d", got, outer)
	}
	debug.SetMemoryLimit(outer - 1)
	if got := memoryLimit(); got != outer-1 {
		t.Errorf("with GOMEMLIMIT the limit is %d, want %d", got, outer-1)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
