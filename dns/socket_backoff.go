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
	// logInterval limits the log lines of a socket with frequent errors.
	logInterval = time.Minute
)

// errorBackoff delays the next attempt on a socket after an error, for example while no file descriptor is free.
// Unanswered queries are preferable to an agent that exits.
type errorBackoff struct {
	log     *slog.Logger
	backoff backoff.Backoff
	failing bool
	since   time.Time // time of the last logged error
	logged  bool
}

func newErrorBackoff(log *slog.Logger) *errorBackoff {
	return &errorBackoff{log: log, backoff: backoff.Backoff{Min: minPause, Max: maxPause}}
}

// wait waits before the next attempt, longer after each error. It returns the error when no attempt can succeed.
func (s *errorBackoff) wait(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if now := time.Now(); !s.failing && (s.since.IsZero() || now.Sub(s.since) >= logInterval) {
		s.since, s.logged = now, true
		s.log.Warn("cannot receive DNS queries; retrying", "error", err)
	}
	s.failing = true
	timer := time.NewTimer(s.backoff.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// reset is called when the socket works.
func (s *errorBackoff) reset() {
	s.failing = false
	s.backoff.Reset()
	if s.logged {
		s.logged = false
		s.log.Info("DNS queries are received again", "failed for", time.Since(s.since).Round(time.Millisecond))
	}
}
