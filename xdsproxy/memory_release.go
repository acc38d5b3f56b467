package xdsproxy

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// largeMessage is the size in bytes from which the memory of a message is returned to the kernel.
	largeMessage = 1 << 20
	// releaseDelay is the time from the last large message until then. It is longer than the delay of a save.
	releaseDelay = 10 * time.Second
)

// memoryReleaser returns the memory of large messages to the kernel. Without it, gRPC's buffers remain in memory until
// the second periodic garbage collection, which is minutes later.
type memoryReleaser struct {
	mu    sync.Mutex
	timer *time.Timer
}

// observe schedules a release if the message is large.
func (m *memoryReleaser) observe(size int) {
	if size < largeMessage {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer == nil {
		m.timer = time.AfterFunc(releaseDelay, releaseMemory)
		return
	}
	m.timer.Reset(releaseDelay)
}

// stop ends a scheduled release.
func (m *memoryReleaser) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer != nil {
		m.timer.Stop()
	}
}

func releaseMemory() {
	runtime.GC() // a sync.Pool releases its buffers at the second collection
	debug.FreeOSMemory()
}
