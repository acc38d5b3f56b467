package agent

import (
	"context"
	"runtime/debug"
	"time"
)

// An agent runs in every pod, so that what it needs only to start counts many times over.
const (
	// settleAfter is when starting is over, also where it takes long.
	settleAfter = 5 * time.Second
	// While it starts, the agent's heap may grow to 16 MB before it is collected, which it does not reach: collecting
	// would take time from Envoy's start.
	startHeapGrowth = 400
	// After that the collector runs when the heap has grown by so many percent. The agent's heap is a few megabytes,
	// which takes less than a millisecond to collect.
	heapGrowth = 40
)

// hurry favours speed over memory until settle ends that.
func hurry() { debug.SetGCPercent(startHeapGrowth) }

// settle gives back what starting took: the garbage of reading and building the configuration, and the pages of the
// program that only initialisation reads.
func settle(ctx context.Context) {
	if !sleep(ctx, settleAfter) {
		return
	}
	debug.SetGCPercent(heapGrowth)
	debug.FreeOSMemory()
	forgetProgram()
}
