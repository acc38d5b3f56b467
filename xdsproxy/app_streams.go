package xdsproxy

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxClients limits the open streams of applications. Each has its own upstream connection.
const maxClients = 64

var errTooManyClients = status.Errorf(codes.ResourceExhausted, "%d streams of applications are open", maxClients)

// appStreams counts the streams of applications that speak xDS themselves. They are independent of Envoy's stream and
// of each other, because each has its own xDS node or at least its own client.
type appStreams struct {
	count int
	// primary uses the relay's own connection, because no Envoy needs it.
	primary *session
}

// classifyStream determines whether the stream is Envoy's or an application's, and sets the fields that depend on it.
func (r *Relay) classifyStream(s *session) {
	s.client = r.config.Proxyless || r.config.IsEnvoy != nil && !r.config.IsEnvoy(s.process)
	s.tracker, s.upstream = r.tracker, r.upstream
	if !s.client { // several applications may request different resources
		s.store = r.store.Load()
	}
}

// runUplink runs the stream's own upstream connection, if it has one, until ctx ends.
func (s *session) runUplink(ctx context.Context) {
	if s.upstream != s.relay.upstream {
		s.upstream.run(ctx)
	}
}

// isSecondary reports whether the relay's status and health exclude the stream.
func (s *session) isSecondary() bool { return s.client && !s.relay.config.Proxyless }

// addClient admits a stream of an application, with its own connection unless the relay's is unused. The caller holds
// mu. It returns errTooManyClients at the limit.
func (r *Relay) addClient(s *session) error {
	if r.clients.count >= maxClients {
		r.log.Warn("a stream of an application is refused, because too many are open", "pid", s.process, "streams", r.clients.count)
		return errTooManyClients
	}
	r.clients.count++
	own := newStatusTracker(r.config.Now, slog.New(slog.DiscardHandler))
	if s.isSecondary() {
		s.tracker = own
	}
	if s.isSecondary() || r.clients.primary != nil {
		s.upstream = newUpstream(r.config, own)
	} else {
		r.clients.primary = s
	}
	r.log.Debug("stream of an application", "pid", s.process, "streams", r.clients.count)
	if r.config.Proxyless {
		r.tracker.markEnvoyConnected(s.proto, s.process)
	}
	return nil
}

// removeClient removes the stream of an application; the caller holds mu.
func (r *Relay) removeClient(s *session) {
	r.clients.count--
	if r.clients.primary == s {
		r.clients.primary = nil
	}
	if r.config.Proxyless && r.clients.count == 0 {
		r.tracker.markEnvoyDisconnected()
	}
}
