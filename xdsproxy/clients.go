package xdsproxy

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostClients bounds the streams of applications that are open at a time; each has a connection of its own.
const mostClients = 64

var errTooManyClients = status.Errorf(codes.ResourceExhausted, "%d streams of applications are open already", mostClients)

// clients are the streams of applications that speak xDS themselves. They stand beside Envoy's and beside each other,
// since each is of another node, or at least of another program.
type clients struct {
	open int
	// first has the connection that is kept for Envoy, where there is none.
	first *session
}

// tellApart finds out whose the stream is.
func (r *Relay) tellApart(s *session) {
	s.client = r.config.Proxyless || r.config.IsEnvoy != nil && !r.config.IsEnvoy(s.process)
	s.book, s.uplink, s.disk, s.keeper = r.book, r.uplink, r.keeper, r.keeper.inForce()
	if s.client { // there may be many of them, which do not all want the same
		s.keeper = nil
	}
}

// runUplink runs the connection of the stream's own, if it has one, until the context ends.
func (s *session) runUplink(ctx context.Context) {
	if s.uplink != s.relay.uplink {
		s.uplink.run(ctx)
	}
}

// beside says that the stream is none that the relay reports on.
func (s *session) beside() bool { return s.client && !s.relay.config.Proxyless }

// enterClient lets a client in, with a connection of its own unless it can have the one that is kept ready; the caller holds the lock.
func (r *Relay) enterClient(s *session) error {
	if r.clients.open >= mostClients {
		r.log.Warn("the stream of an application is refused, since there are too many", "pid", s.process, "streams", r.clients.open)
		return errTooManyClients
	}
	r.clients.open++
	own := newLedger(r.config.Now, slog.New(slog.DiscardHandler))
	if s.beside() {
		s.book = own
	}
	if s.beside() || r.clients.first != nil {
		s.uplink = newUplink(r.config, own)
	} else {
		r.clients.first = s
	}
	r.log.Debug("stream of an application", "pid", s.process, "streams", r.clients.open)
	if r.config.Proxyless {
		r.book.envoyConnected(s.proto, s.process)
	}
	return nil
}

// leaveClient is called with the lock held.
func (r *Relay) leaveClient(s *session) {
	r.clients.open--
	if r.clients.first == s {
		r.clients.first = nil
	}
	if r.config.Proxyless && r.clients.open == 0 {
		r.book.envoyDisconnected()
	}
}
