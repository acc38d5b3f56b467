package controlplane

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// defaultMemoryLimit is the memory limit if neither GOMEMLIMIT nor a cgroup limits the process.
	defaultMemoryLimit = 4 << 30
	// clientShare: the subscriptions of all clients may use 1/clientShare of the memory limit. Unauthenticated
	// connections may use the same amount.
	clientShare = 8
)

// memoryLimit returns the memory limit of the process in bytes: the minimum of GOMEMLIMIT and the cgroup limits.
func memoryLimit() int64 {
	limit := min(debug.SetMemoryLimit(-1), cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup"))
	if limit == math.MaxInt64 {
		return defaultMemoryLimit
	}
	return limit
}

// limitHeap sets Go's memory limit to nine tenths of the cgroup limits, unless GOMEMLIMIT is set. Go's garbage
// collector then frees memory before the process exceeds the cgroup limit and the kernel kills it.
func limitHeap() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		if limit := cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup"); limit != math.MaxInt64 {
			debug.SetMemoryLimit(limit / 10 * 9)
		}
	}
}

// cgroupMemory returns the minimum of the memory limits of the process's cgroup and its parents, or math.MaxInt64 if
// there are none.
func cgroupMemory(membership, root string) int64 {
	limit := int64(math.MaxInt64)
	data, _ := os.ReadFile(membership) // the file exists only on Linux
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		hierarchy, file := root, "memory.max"
		if parts[0] != "0" {
			if parts[1] != "memory" {
				continue
			}
			hierarchy, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			limit = min(limit, readLimit(filepath.Join(hierarchy, dir, file)))
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// readLimit returns the memory limit in the cgroup file path, or math.MaxInt64 if the file contains none.
func readLimit(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt64
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || limit <= 0 || limit > 1<<50 { // not a limit: "max", or the maximum value of cgroup v1
		return math.MaxInt64
	}
	return limit
}
