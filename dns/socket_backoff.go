package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	minPause = 10 * time.Millisecond
	maxPause = time.Second
	// logInterval is the minimum interval between log messages about errors of one socket.
	logInterval = time.Minute
)

// errorBackoff delays the next read or accept on a socket after an error, for example if all file descriptors are in
// use. The agent retries instead of exiting.
type errorBackoff struct {
	log     *slog.Logger
	backoff backoff.Backoff
	failing bool      // the last attempt failed
	since   time.Time // time of the last logged error
	logged  bool      // the error was logged, so that recovery is logged too
}

func newErrorBackoff(log *slog.Logger) *errorBackoff {
	return &errorBackoff{log: log, backoff: backoff.Backoff{Min: minPause, Max: maxPause}}
}

// wait waits before the next attempt, longer after each consecutive error. It logs err at most once per logInterval. It
// returns err if the socket is closed, and nil otherwise.
func (s *errorBackoff) wait(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if now := time.Now(); !s.failing && (s.since.IsZero() || now.Sub(s.since) >= logInterval) {
		s.since, s.logged = now, true
		s.log.Warn("cannot receive DNS queries; retrying", "error", err)
	}
	s.failing = true
	backoff.Sleep(ctx, s.backoff.Next())
	return nil
}

// reset resets the delay after a successful attempt.
func (s *errorBackoff) reset() {
	s.failing = false
	s.backoff.Reset()
	if s.logged {
		s.logged = false
		s.log.Info("receiving DNS queries again", "failedFor", time.Since(s.since).Round(time.Millisecond))
	}
}
