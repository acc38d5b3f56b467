package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"
)

const (
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
	// logInterval limits the log lines of a socket with frequent errors.
	logInterval = time.Minute
)

// errorBackoff delays the next attempt on a socket after an error, for example while no file descriptor is free.
// Unanswered queries are preferable to an agent that exits.
type errorBackoff struct {
	log    *slog.Logger
	pause  time.Duration
	since  time.Time // time of the last logged error
	logged bool
}

// wait waits before the next attempt, longer after each error. It returns the error when no attempt can succeed.
func (s *errorBackoff) wait(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if now := time.Now(); s.pause == 0 && (s.since.IsZero() || now.Sub(s.since) >= logInterval) {
		s.since, s.logged = now, true
		s.log.Warn("cannot receive DNS queries; retrying", "error", err)
	}
	s.pause = min(max(2*s.pause, firstPause), maxPause)
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// reset is called when the socket works.
func (s *errorBackoff) reset() {
	s.pause = 0
	if s.logged {
		s.logged = false
		s.log.Info("DNS questions are taken again", "failed for", time.Since(s.since).Round(time.Millisecond))
	}
}
