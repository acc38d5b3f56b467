package status

import (
	"net"
	"net/http"
	"sync"
)

// newConns tracks the connections on which no request has arrived yet. Some clients open connections in advance, and
// http.Server.Shutdown would wait five seconds for them.
type newConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	ending bool
}

// onState is the server's ConnState hook. It adds new connections, and removes them when a request arrives.
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

// close closes the connections on which no request has arrived, and every connection that is accepted later.
func (s *newConns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c := range s.conns {
		_ = c.Close()
	}
}
