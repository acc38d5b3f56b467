package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"
)

const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
	// complainEvery bounds the log of a socket that works now and then.
	complainEvery = time.Minute
)

// setback is what a socket goes through while it gives errors, such as when no file descriptor is left. Names that are
// not answered for a while are bad; a proxy that ended for it would be worse.
type setback struct {
	log   *slog.Logger
	pause time.Duration
	since time.Time // of the setback that was told last
	told  bool
}

// endure waits before the next attempt, longer each time. The error comes back when no attempt can help.
func (s *setback) endure(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if now := time.Now(); s.pause == 0 && (s.since.IsZero() || now.Sub(s.since) >= complainEvery) {
		s.since, s.told = now, true
		s.log.Warn("DNS questions cannot be taken; trying on", "error", err)
	}
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// over is called when the socket works.
func (s *setback) over() {
	s.pause = 0
	if s.told {
		s.told = false
		s.log.Info("DNS questions are taken again", "failed for", time.Since(s.since).Round(time.Millisecond))
	}
}
