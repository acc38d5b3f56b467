package controlplane

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// gcPercent is the GC percentage. In a burst of clients, garbage uses more memory than the clients' state.
	gcPercent = 50
	// trimInterval is the check interval. The process is idle if it allocates less than maxIdleAllocation in that time.
	trimInterval      = 2 * time.Second
	maxIdleAllocation = 8 << 20
	// minTrimAllocation is the minimum allocation since the last collection that justifies another one.
	minTrimAllocation = 64 << 20
)

// freeOSMemory returns free memory to the operating system after each burst, until the context ends. Bursts occur at
// the start and when all clients reconnect.
func freeOSMemory(ctx context.Context) {
	debug.SetGCPercent(gcPercent)
	ticker := time.NewTicker(trimInterval)
	defer ticker.Stop()
	before, lastTrim := uint64(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := allocatedBytes()
		if now-before < maxIdleAllocation && now-lastTrim > minTrimAllocation {
			debug.FreeOSMemory()
			lastTrim = now
		}
		before = now
	}
}

// allocatedBytes returns the total bytes allocated so far.
func allocatedBytes() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
