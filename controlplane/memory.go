package controlplane

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// heapGrowth is by how many percent the heap grows before it is collected. What makes a burst of clients costly in
	// memory is garbage, more than what they hold.
	heapGrowth = 50
	// quietAfter is how often memory is looked at, and quietBytes how little is allocated meanwhile when nothing goes on.
	quietAfter = 2 * time.Second
	quietBytes = 8 << 20
	// worthBytes is how much was allocated at least for a collection to be worth while.
	worthBytes = 64 << 20
)

// giveBack returns to the system what a burst has left, once it is over, until the context ends: a control plane has
// bursts when it starts and when all its clients come back, and little to do between them.
func giveBack(ctx context.Context) {
	debug.SetGCPercent(heapGrowth)
	ticker := time.NewTicker(quietAfter)
	defer ticker.Stop()
	before, given := uint64(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := allocated()
		if now-before < quietBytes && now-given > worthBytes {
			debug.FreeOSMemory()
			given = now
		}
		before = now
	}
}

// allocated is how many bytes were allocated so far.
func allocated() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
