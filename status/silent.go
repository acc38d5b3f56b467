package status

import (
	"net"
	"net/http"
	"sync"
)

// silent are connections on which no request has come yet. http.Server.Shutdown waits five seconds for each of them, and
// there is one wherever a client dials ahead or gave up on what it had dialled for.
type silent struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	ending bool
}

// note is the server's ConnState hook.
func (s *silent) note(c net.Conn, state http.ConnState) {
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

// close ends them, and those that are still to come.
func (s *silent) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c := range s.conns {
		_ = c.Close()
	}
}
