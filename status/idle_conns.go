package status

import (
	"net"
	"net/http"
	"sync"
)

// newConns are connections without a request so far. http.Server.Shutdown waits five seconds for each of them, and
// clients that open connections in advance have some.
type newConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	ending bool
}

// onState is the server's ConnState hook.
func (s *newConns) onState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.ending:
		_ = c.Close()
	default:
		if s.conns == nil {
			s.conns = map[net.Conn]struct{}{}
		}
		s.conns[c] = struct{}{}
	}
}

// close closes these connections, and further new ones.
func (s *newConns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c := range s.conns {
		_ = c.Close()
	}
}
