package xdsproxy

import (
	"context"
	"net"
	"slices"

	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// succession is the order of the Envoys that have had a stream. While one takes over from another, both run: the newer
// one's stream is in force, and the older keeps the configuration that it has. Two streams of one proxy would confuse a
// control plane, and if each displaced the other, neither would get anywhere. Should the newer one end, the older is
// served again.
type succession struct {
	// processes are the ids of Envoys, the oldest first.
	processes []int32
	// vacated is closed when a stream that was in force has ended.
	vacated chan struct{}
}

// mostProcesses bounds the processes that are remembered: only those that run at one time matter.
const mostProcesses = 16

type processKey struct{}

// withProcess has the context of a connection's streams tell the process at the other end.
func withProcess(ctx context.Context, conn net.Conn) context.Context {
	if peer, err := uds.PeerOf(conn); err == nil {
		return context.WithValue(ctx, processKey{}, peer.PID)
	}
	return ctx
}

// processOf is the id of the process at the other end, or 0 when it is not known.
func processOf(ctx context.Context) int32 {
	process, _ := ctx.Value(processKey{}).(int32)
	return process
}

// age gives a process its place in the order; a higher one is newer.
func (s *succession) age(process int32) int {
	if i := slices.Index(s.processes, process); i >= 0 {
		return i
	}
	if len(s.processes) == mostProcesses {
		s.processes = slices.Delete(s.processes, 0, 1)
	}
	s.processes = append(s.processes, process)
	return len(s.processes) - 1
}

// await makes the session the one in force, as soon as no newer Envoy's is.
func (r *Relay) await(s *session) error {
	if s.client {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.enterClient(s)
	}
	for {
		vacated := r.enter(s)
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

// enter makes the session the one in force, or tells when to try again.
func (r *Relay) enter(s *session) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	age, old := r.order.age(s.process), r.current
	if old != nil && age < r.order.age(old.process) {
		r.log.Info("the stream of an Envoy waits, since a newer one runs", "pid", s.process, "newer", old.process)
		if r.order.vacated == nil {
			r.order.vacated = make(chan struct{})
		}
		return r.order.vacated
	}
	r.current = s
	r.book.envoyConnected(s.proto, s.process)
	if old != nil {
		old.cancel(errDisplaced)
		r.log.Info("a new stream of Envoy displaces the old one", "pid", s.process, "old", old.process)
	}
	return nil
}

func (r *Relay) leave(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.client {
		r.leaveClient(s)
		return
	}
	if r.current != s {
		return
	}
	r.current = nil
	r.book.envoyDisconnected()
	if r.order.vacated != nil {
		close(r.order.vacated)
		r.order.vacated = nil
	}
}
