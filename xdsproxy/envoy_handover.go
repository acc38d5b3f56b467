package xdsproxy

import (
	"context"
	"slices"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// envoyHandover determines which Envoy process the relay serves. During a hot restart two Envoys run. The relay then
// serves the newer process, and the older one continues with the configuration that it has, because a control plane
// must not see two streams of one proxy. If the newer process exits, the relay serves the older one again.
type envoyHandover struct {
	// processes are the PIDs of Envoys, oldest first.
	processes []int32
	// released is closed when the active stream ends. It is nil if no stream waits for this.
	released chan struct{}
}

// maxProcesses limits the recorded PIDs. The PIDs of processes that have exited are not needed.
const maxProcesses = 16

// peerOf returns the peer of a stream, or the zero Peer if it is unknown.
func peerOf(ctx context.Context) uds.Peer {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(uds.AuthInfo); ok {
			return info.Peer
		}
	}
	return uds.Peer{}
}

// peerPID returns the PID of a stream's peer, or 0 if it is unknown.
func peerPID(ctx context.Context) int32 {
	return peerOf(ctx).PID
}

// position returns the index of a PID in processes. It appends an unknown PID, so a newer process has a higher index.
func (s *envoyHandover) position(process int32) int {
	if i := slices.Index(s.processes, process); i >= 0 {
		return i
	}
	if len(s.processes) == maxProcesses {
		s.processes = slices.Delete(s.processes, 0, 1)
	}
	s.processes = append(s.processes, process)
	return len(s.processes) - 1
}

// activate makes s the active session. It blocks while a newer Envoy's session is active. If s is the session of an
// application, activate only registers it.
func (r *Relay) activate(s *session) error {
	if s.client {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.addClient(s)
	}
	for {
		vacated := r.tryActivate(s)
		if vacated == nil {
			return nil
		}
		select {
		case <-vacated:
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
}

// tryActivate makes s the active session and returns nil. If a newer Envoy's session is active, it returns a channel
// that is closed when that session ends.
func (r *Relay) tryActivate(s *session) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	index, old := r.handover.position(s.process), r.activeSession
	if old != nil && index < r.handover.position(old.process) {
		r.log.Info("the stream of an old Envoy waits, because the agent serves a newer Envoy", "pid", s.process, "newerPID", old.process)
		if r.handover.released == nil {
			r.handover.released = make(chan struct{})
		}
		return r.handover.released
	}
	r.activeSession = s
	r.tracker.markEnvoyConnected(s.proto, s.process)
	if old != nil {
		old.cancel(errDisplaced)
		r.log.Info("a new stream of Envoy replaces its previous stream", "pid", s.process, "oldPID", old.process)
	}
	return nil
}

// removeSession unregisters a session that has ended. If an older Envoy waits, the relay then serves that Envoy.
func (r *Relay) removeSession(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.client {
		r.removeClient(s)
		return
	}
	if r.activeSession != s {
		return
	}
	r.activeSession = nil
	r.tracker.markEnvoyDisconnected()
	if r.handover.released != nil {
		close(r.handover.released)
		r.handover.released = nil
	}
}
