package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Admission says how new streams are let in. When all clients come at once, as after a restart, they are let in one after the
// other, and the first answers of a stream are made while few others' are, so that they take nothing from the clients that
// are there.
type Admission struct {
	// Rate is how many new streams a second are let in; as many may come at once after a quiet time. Default 500; negative
	// is no limit.
	Rate int
	// Wait is how long a stream waits for its turn at most. One whose turn is later is refused at once, and its client comes
	// back. Default 2 s, which is less than agents wait for a first answer.
	Wait time.Duration
	// Most is how many streams there may be at a time; one more is refused. A client has one, but may open many on one
	// connection. 0 and negative are no limit.
	Most int
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

// door gives new streams their turns, in the order in which they came.
type door struct {
	Admission
	mu   sync.Mutex
	next time.Time // the first turn that nobody has
}

// turn takes a turn, and says how long it is until then; or none is near enough.
func (d *door) turn(now time.Time) (in time.Duration, ok bool) {
	if d.Rate < 0 {
		return 0, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	apart := time.Second / time.Duration(d.Rate)
	if oldest := now.Add(apart - time.Second); d.next.Before(oldest) { // what was not used in the last second
		d.next = oldest
	}
	if in = d.next.Sub(now); in > d.Wait {
		return 0, false
	}
	d.next = d.next.Add(apart)
	return max(0, in), true
}

// seat counts a stream until it leaves, or refuses it.
func (s *Server) seat() (leave func(), err error) {
	n := s.seats.Add(1)
	leave = func() { s.seats.Add(-1) }
	if most := s.cfg.Admission.Most; most > 0 && n > int64(most) {
		leave()
		s.metrics.turnedAway.Inc()
		return nil, status.Errorf(codes.ResourceExhausted, "the control plane has %d streams, which is all that it may have (--max-connections)", most)
	}
	return leave, nil
}

// admit waits for a new stream's turn.
func (s *Server) admit(ctx context.Context) error {
	in, ok := s.door.turn(time.Now())
	if !ok {
		s.metrics.turnedAway.Inc()
		return status.Errorf(codes.ResourceExhausted, "too many clients connect at the same time: connect again in a few seconds")
	}
	if in == 0 {
		return nil
	}
	turn := time.NewTimer(in)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-s.stopping:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// generator waits until the client's resources may be made, and gives what ends that. The first answers of streams leave
// room for what clients are pushed that are there.
func (c *connection) generator() (release func(), err error) {
	rooms := []chan struct{}{c.server.generators}
	if c.arriving {
		rooms = []chan struct{}{c.server.arrivals, c.server.generators}
	}
	taken := 0
	release = func() {
		for _, room := range rooms[:taken] {
			<-room
		}
	}
	for _, room := range rooms {
		select {
		case room <- struct{}{}:
			taken++
		case <-c.ctx.Done():
			release()
			return nil, c.ctx.Err()
		}
	}
	return release, nil
}
