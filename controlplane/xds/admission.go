package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Admission limits new streams. When all clients connect at the same time, as after a restart, the server admits them
// one after the other. It generates the first responses of only a few streams at a time, so that first responses do not
// delay pushes to connected clients.
type Admission struct {
	// Rate is the number of new streams that are admitted per second. After an idle time, a burst of the same number is
	// admitted. Default 500; negative means no limit.
	Rate int
	// Wait is the maximum time that a stream waits for admission. If a stream would wait longer, the server refuses it
	// immediately, and its client reconnects. Default 2 s, which is less than agents wait for a first response.
	Wait time.Duration
	// MaxStreams is the maximum number of concurrent streams. An agent opens one stream, but any client may open many
	// on one connection. 0 and negative values mean no limit.
	MaxStreams int
	// MaxUnauthenticatedStreams is the maximum number of concurrent streams of clients without an identity. 0 and
	// negative values mean no limit.
	MaxUnauthenticatedStreams int
}

func (a Admission) withDefaults() Admission {
	if a.Rate == 0 {
		a.Rate = 500
	}
	if a.Wait <= 0 {
		a.Wait = 2 * time.Second
	}
	return a
}

// streamLimiter assigns admission times to new streams in the order in which they arrive.
type streamLimiter struct {
	Admission
	mu   sync.Mutex
	next time.Time // the first free admission time
}

// reserve reserves an admission time for a new stream and returns the wait until then. If the wait would exceed Wait,
// reserve reserves nothing, and ok is false.
func (d *streamLimiter) reserve(now time.Time) (wait time.Duration, ok bool) {
	if d.Rate < 0 {
		return 0, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	interval := time.Second / time.Duration(d.Rate)
	// Unused admission times of the last second remain available, which permits a burst of Rate streams.
	if oldest := now.Add(interval - time.Second); d.next.Before(oldest) {
		d.next = oldest
	}
	if wait = d.next.Sub(now); wait > d.Wait {
		return 0, false
	}
	d.next = d.next.Add(interval)
	return max(0, wait), true
}

// countStream counts a stream as open until leave is called. If a limit is reached, it does not count the stream and
// returns an error.
func (s *Server) countStream(authenticated bool) (leave func(), err error) {
	n, unauthenticated := s.streams.Add(1), int64(0)
	if !authenticated {
		unauthenticated = s.unauthenticatedStreams.Add(1)
	}
	leave = func() {
		s.streams.Add(-1)
		if !authenticated {
			s.unauthenticatedStreams.Add(-1)
		}
	}
	maxStreams := s.cfg.Admission.MaxStreams
	if maxUnauthenticated := s.cfg.Admission.MaxUnauthenticatedStreams; maxUnauthenticated > 0 && unauthenticated > int64(maxUnauthenticated) {
		leave()
		s.metrics.refusedStreams.Inc()
		return nil, status.Errorf(codes.ResourceExhausted, "the control plane has reached its limit of %d streams of clients without an identity: connect to the port for xDS over TLS, or raise --max-connections", maxUnauthenticated)
	}
	if maxStreams > 0 && n > int64(maxStreams) {
		leave()
		s.metrics.refusedStreams.Inc()
		return nil, status.Errorf(codes.ResourceExhausted, "the control plane has reached its limit of %d streams: raise --max-connections", maxStreams)
	}
	return leave, nil
}

// waitForAdmission waits until a new stream is admitted. It returns an error if the stream is not admitted.
func (s *Server) waitForAdmission(ctx context.Context) error {
	wait, ok := s.limiter.reserve(time.Now())
	if !ok {
		s.metrics.refusedStreams.Inc()
		return status.Errorf(codes.ResourceExhausted, "too many clients connect at the same time: connect again in a few seconds")
	}
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.stopping:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acquireGenerator waits until a generator slot is free. The caller generates the client's resources and then calls
// release. First responses may use only some of the slots, so that slots remain for pushes to connected clients.
func (c *connection) acquireGenerator() (release func(), err error) {
	slots := []chan struct{}{c.server.generators}
	if c.firstOfType {
		slots = []chan struct{}{c.server.firstGenerators, c.server.generators}
	}
	acquired := 0
	release = func() {
		for _, slot := range slots[:acquired] {
			<-slot
		}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			acquired++
		case <-c.ctx.Done():
			release()
			return nil, c.ctx.Err()
		}
	}
	return release, nil
}
