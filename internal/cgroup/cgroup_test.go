package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// machine returns the group of a process on a machine with these files in /proc and /sys.
func machine(t *testing.T, files map[string]string) Group {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return NewGroup(root)
}

const (
	v2Mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	v1Mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	v1None = "9223372036854771712\n"
)

func TestLimitsAreReadWhereverTheProcessIs(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name   string
		files  map[string]string
		memory uint64  // 0: no limit
		cpus   float64 // 0: no limit
		usage  uint64
	}{
		{
			name: "v2, a container in a namespace of its own",
			files: map[string]string{
				"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount,
				"sys/fs/cgroup/memory.max": "1073741824\n", "sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/memory.current": "5\n",
			},
			memory: gib, cpus: 1.5, usage: 5,
		},
		{
			name: "v2, the pod's limit is under the container's",
			files: map[string]string{
				"proc/self/cgroup": "0::/kubepods/pod1/c1\n", "proc/self/mountinfo": v2Mount,
				"sys/fs/cgroup/kubepods/pod1/memory.max":        "1073741824\n",
				"sys/fs/cgroup/kubepods/pod1/c1/memory.max":     "2147483648\n",
				"sys/fs/cgroup/kubepods/pod1/c1/memory.current": "7\n",
				"sys/fs/cgroup/kubepods/pod1/c1/cpu.max":        "max 100000\n",
				"sys/fs/cgroup/kubepods/pod1/cpu.max":           "50000 100000\n",
			},
			memory: gib, cpus: 0.5, usage: 7,
		},
		{
			name: "v2, no limit",
			files: map[string]string{
				"proc/self/cgroup": "0::/user.slice\n", "proc/self/mountinfo": v2Mount,
				"sys/fs/cgroup/user.slice/memory.max": "max\n", "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
			},
		},
		{
			name: "v2, a path above the namespace",
			files: map[string]string{
				"proc/self/cgroup": "0::/../../other\n", "proc/self/mountinfo": v2Mount, "sys/fs/cgroup/memory.max": "1073741824\n",
			},
			memory: gib,
		},
		{
			name: "v1, on the host",
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/a/b\n1:cpu,cpuacct:/a\n", "proc/self/mountinfo": v1Mount,
				"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes":  v1None,
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes":    "1073741824\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes":      v1None,
				"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes":  "9\n",
				"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us":    "200000\n",
				"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us":   "100000\n",
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":      "-1\n",
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us":     "100000\n",
				"sys/fs/cgroup/memory/a/b/c/memory.usage_in_byte": "1\n",
			},
			memory: gib, cpus: 2, usage: 9,
		},
		{
			name: "v1, a container that is told the host's path but has only its own group mounted",
			files: map[string]string{
				"proc/self/cgroup":                           "4:memory:/kubepods/pod1/c1\n",
				"proc/self/mountinfo":                        "35 31 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
			},
			memory: gib,
		},
		{
			name: "v1 and v2 together, as systemd's hybrid has them",
			files: map[string]string{
				"proc/self/cgroup":                             "4:memory:/a\n0::/b\n",
				"proc/self/mountinfo":                          v1Mount + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
				"sys/fs/cgroup/unified/b/cgroup.procs":         "",
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
			},
			memory: gib,
		},
		{
			name: "a mount with a space in its name",
			files: map[string]string{
				"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": `30 23 0:26 / /my\040groups rw - cgroup2 cgroup2 rw` + "\n",
				"my groups/memory.max": "1073741824\n",
			},
			memory: gib,
		},
		{name: "no cgroups at all"},
		{name: "nonsense", files: map[string]string{
			"proc/self/cgroup": "0::/\n:\n", "proc/self/mountinfo": v2Mount + " - \nx\n",
			"sys/fs/cgroup/memory.max": "lots\n", "sys/fs/cgroup/cpu.max": "1 0\n",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := machine(t, c.files)
			if n, ok := g.MemoryLimit(); ok != (c.memory > 0) || ok && n != c.memory {
				t.Errorf("MemoryLimit = %d %v, want %d", n, ok, c.memory)
			}
			if n, ok := g.CPULimit(); ok != (c.cpus > 0) || ok && n != c.cpus {
				t.Errorf("CPULimit = %v %v, want %v", n, ok, c.cpus)
			}
			if n, ok := g.MemoryUsage(); ok != (c.usage > 0) || n != c.usage {
				t.Errorf("MemoryUsage = %d %v, want %d", n, ok, c.usage)
			}
		})
	}
}
