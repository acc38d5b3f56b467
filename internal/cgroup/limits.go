package cgroup

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"
)

// unlimited is the minimum value that means "no limit". Without a limit, cgroup v1 reports the maximum number of bytes
// in whole pages.
const unlimited = 1 << 62

// MemoryLimit returns how many bytes of memory the processes of the group may use in total. ok is false if there is no
// limit.
func (g Group) MemoryLimit() (bytes uint64, ok bool) {
	bytes = math.MaxUint64
	for _, at := range []struct {
		controller controller
		file       string
	}{{unified, "memory.max"}, {memory, "memory.limit_in_bytes"}} {
		for _, dir := range g.dirs(at.controller) {
			if n, ok := g.number(dir, at.file); ok {
				bytes = min(bytes, n)
			}
		}
	}
	return bytes, bytes < unlimited
}

// MemoryUsage returns how many bytes of memory the group uses, including the page cache. ok is false if the kernel does
// not report it.
func (g Group) MemoryUsage() (bytes uint64, ok bool) {
	for _, at := range []struct {
		controller controller
		file       string
	}{{unified, "memory.current"}, {memory, "memory.usage_in_bytes"}} {
		for _, dir := range g.dirs(at.controller) {
			if n, ok := g.number(dir, at.file); ok {
				return n, true
			}
		}
	}
	return 0, false
}

// CPULimit returns how many CPUs the processes of the group may use in total. ok is false if there is no limit.
func (g Group) CPULimit() (cores float64, ok bool) {
	cores = math.Inf(1)
	for _, dir := range g.dirs(unified) {
		if quota, period, found := strings.Cut(strings.TrimSpace(g.read(filepath.Join(dir, "cpu.max"))), " "); found {
			cores = min(cores, share(quota, period))
		}
	}
	for _, dir := range g.dirs(cpu) {
		quota, period := g.read(filepath.Join(dir, "cpu.cfs_quota_us")), g.read(filepath.Join(dir, "cpu.cfs_period_us"))
		cores = min(cores, share(strings.TrimSpace(quota), strings.TrimSpace(period)))
	}
	return cores, !math.IsInf(cores, 1)
}

// share returns quota divided by period. Without a quota ("max" in v2, -1 in v1) it returns infinity.
func share(quota, period string) float64 {
	q, errQuota := strconv.ParseUint(quota, 10, 64)
	p, errPeriod := strconv.ParseUint(period, 10, 64)
	if errQuota != nil || errPeriod != nil || q == 0 || p == 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

func (g Group) number(dir, file string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(g.read(filepath.Join(dir, file))), 10, 64)
	return n, err == nil
}
