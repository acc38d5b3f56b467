package agent

import (
	"sync"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// family is the Envoys that run on behalf of the agent, by which their streams are told from those of applications.
type family struct {
	mu      sync.Mutex
	members map[int]bool
}

// add starts an Envoy. Nobody is told whether a process is one while that happens.
func (f *family) add(start func() (*envoy.Process, error)) (*envoy.Process, error) {
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

// remove forgets an Envoy that has ended: another process may get its id.
func (f *family) remove(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, pid)
}

// isEnvoy says whether a process is one of the agent's Envoys, or what such a one has started: ENVOY_PATH may name a script.
func (a *Agent) isEnvoy(pid int32) bool {
	group, err := syscall.Getpgid(int(pid))
	a.family.mu.Lock()
	defer a.family.mu.Unlock()
	return a.family.members[int(pid)] || err == nil && a.family.members[group]
}
