package xdsproxy

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxClients limits the number of open streams of applications. Each of these streams has its own upstream connection.
const maxClients = 64

var errTooManyClients = status.Errorf(codes.ResourceExhausted, "the stream is refused, because applications have %d xDS streams, which is the maximum", maxClients)

// appStreams counts the streams of applications that are xDS clients themselves, such as proxyless gRPC applications.
// Each application is a separate xDS client, so each stream is independent of all other streams.
type appStreams struct {
	count int
	// primary is the application stream that uses the relay's connection to the control plane. It is set only with
	// Config.Proxyless; otherwise Envoy's stream uses that connection.
	primary *session
}

// classifyStream determines whether the stream is Envoy's or an application's, and sets the fields that depend on it.
func (r *Relay) classifyStream(s *session) {
	s.client = r.config.Proxyless || r.config.IsEnvoy != nil && !r.config.IsEnvoy(s.process)
	s.tracker, s.upstream = r.tracker, r.upstream
	if !s.client { // the store cannot contain different resources for several applications
		s.store = r.store.Load()
	}
}

// runUplink maintains the stream's own connection to a control plane until ctx ends. It returns immediately if the
// stream uses the relay's connection.
func (s *session) runUplink(ctx context.Context) {
	if s.upstream != s.relay.upstream {
		s.upstream.run(ctx)
	}
}

// isSecondary reports whether the stream is excluded from the relay's status and health, because it is an application's
// stream alongside Envoy's.
func (s *session) isSecondary() bool { return s.client && !s.relay.config.Proxyless }

// addClient registers an application's stream and creates a connection for it, unless it becomes the primary stream.
// It returns errTooManyClients at the limit. The caller holds mu.
func (r *Relay) addClient(s *session) error {
	if r.clients.count >= maxClients {
		r.log.Warn("refused an application's xDS stream, because too many are open", "pid", s.process, "streams", r.clients.count)
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
	r.log.Debug("an application opened an xDS stream", "pid", s.process, "streams", r.clients.count)
	if r.config.Proxyless {
		r.tracker.markEnvoyConnected(s.proto, s.process)
	}
	return nil
}

// removeClient unregisters an application's stream; the caller holds mu.
func (r *Relay) removeClient(s *session) {
	r.clients.count--
	if r.clients.primary == s {
		r.clients.primary = nil
	}
	if r.config.Proxyless && r.clients.count == 0 {
		r.tracker.markEnvoyDisconnected()
	}
}
