package agent

import (
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// envoyPIDs is the set of PIDs of the agent's Envoys. The agent uses it to distinguish Envoy's connections from the
// connections of applications.
type envoyPIDs struct {
	mu      sync.Mutex
	members map[int]bool
}

// add calls start, which starts an Envoy, and adds its PID. It holds the lock meanwhile, so that no lookup misses the
// new process.
func (f *envoyPIDs) add(start func() (*envoy.Process, error)) (*envoy.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	process, err := start()
	if err != nil {
		return nil, err
	}
	if f.members == nil {
		f.members = make(map[int]bool)
	}
	f.members[process.PID()] = true
	return process, nil
}

// remove removes the PID of an exited Envoy, because the kernel may assign it to another process.
func (f *envoyPIDs) remove(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, pid)
}

// list returns the process IDs of the Envoys.
func (f *envoyPIDs) list() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.members))
}

// isEnvoy reports whether the process pid is one of the agent's Envoys, or belongs to the process group of one.
// ENVOY_PATH may name a script that starts Envoy in its own process group.
func (a *Agent) isEnvoy(pid int32) bool {
	group, err := syscall.Getpgid(int(pid))
	a.envoyPIDs.mu.Lock()
	defer a.envoyPIDs.mu.Unlock()
	return a.envoyPIDs.members[int(pid)] || err == nil && a.envoyPIDs.members[group]
}
