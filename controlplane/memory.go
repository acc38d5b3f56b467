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
	// worthBytes is how much more than what lives has to be there for giving it back to be worth a collection.
	worthBytes = 32 << 20
)

// giveBack returns to the system what a burst has left, once it is over, until the context ends: a control plane has
// bursts when it starts and when all its clients come back, and little to do between them.
func giveBack(ctx context.Context) {
	debug.SetGCPercent(heapGrowth)
	ticker := time.NewTicker(quietAfter)
	defer ticker.Stop()
	before := readMemory()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := readMemory()
		if now.allocated-before.allocated < quietBytes && now.held > now.lives+now.lives/4+worthBytes {
			debug.FreeOSMemory()
			now = readMemory()
		}
		before = now
	}
}

// memory is that of the heap, in bytes: allocated since the start, alive at the last collection, and held of the system.
type memory struct{ allocated, lives, held uint64 }

func readMemory() memory {
	samples := []runtimemetrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
	}
	runtimemetrics.Read(samples)
	return memory{
		allocated: samples[0].Value.Uint64(), lives: samples[1].Value.Uint64(),
		held: samples[2].Value.Uint64() + samples[3].Value.Uint64() + samples[4].Value.Uint64(),
	}
}
