// Package processors limits the program to one processor while it has little to do. An event, such as a configuration
// update, passes several goroutines in turn. With more than one processor, the Go scheduler wakes an idle processor for
// each of them, although there is no work to do in parallel. For a small update, this uses a third of the CPU time.
package processors

import (
	"runtime"
	"sync"
)

var (
	mu sync.Mutex
	// all is the number of processors without the limit; 0 if Limit was not called.
	all int
	// users is the number of callers of UseAll that have not released it.
	users int
)

// Limit limits the program to one processor, except while a caller of UseAll needs more. Further calls have no effect.
func Limit() {
	mu.Lock()
	defer mu.Unlock()
	if all != 0 {
		return
	}
	all = runtime.GOMAXPROCS(0)
	if users == 0 {
		runtime.GOMAXPROCS(1)
	}
}

// UseAll allows the program to use all processors until release is called. Use it for work that runs in parallel for
// some milliseconds or more. A change of the limit stops all goroutines for some microseconds. It is safe for
// concurrent use.
func UseAll() (release func()) {
	mu.Lock()
	defer mu.Unlock()
	users++
	if all != 0 && users == 1 {
		runtime.GOMAXPROCS(all)
	}
	return sync.OnceFunc(endUse)
}

func endUse() {
	mu.Lock()
	defer mu.Unlock()
	users--
	if all != 0 && users == 0 {
		runtime.GOMAXPROCS(1)
	}
}
