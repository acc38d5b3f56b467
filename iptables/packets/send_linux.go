package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// run sends everything and waits until it arrived, or had the time to.
func (s *session) run(ctx context.Context) {
	for _, a := range s.attempts {
		a.began = time.Now()
	}
	for _, c := range s.catchers {
		s.serving.Go(func() { c.serve(s.arrived, s.cfg.Timeout) })
	}
	reading := make(chan struct{})
	go func() { defer close(reading); s.wire.read(s.left) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if len(s.steering.stops.noted) > 0 || s.steering.answers.known != nil {
		s.serving.Go(func() { s.watch(ctx) })
	}
	for _, a := range s.attempts {
		select {
		case <-a.done: // it could not be prepared
			continue
		default:
		}
		if a.packet.Inbound {
			_, far := s.endsOf(a.packet)
			s.wire.begin(a, netip.AddrPortFrom(far, a.port), s.hardware(a.packet))
			continue
		}
		s.serving.Go(func() {
			a.send(ctx)
			if a.packet.Answerer != nil {
				s.await(ctx, a)
			}
		})
	}
	for _, a := range s.attempts {
		select {
		case <-a.done:
		case <-ctx.Done():
			s.late(a)
		}
	}
	s.stopReading(reading)
}

// hardware is the sender of a packet's frames.
func (s *session) hardware(p Packet) [6]byte {
	if by := s.world.passages[p.Interface]; by != nil {
		return by.hardware
	}
	return ownHardware
}

// stopReading wakes the reader of the wire, which the next session reads again.
func (s *session) stopReading(reading <-chan struct{}) {
	_ = s.wire.file.SetReadDeadline(time.Unix(1, 0))
	<-reading
	_ = s.wire.file.SetReadDeadline(time.Time{})
}

// arrived is told by the catchers.
func (s *session) arrived(t token, got Arrival) {
	a, ok := s.byToken[t]
	switch {
	case !ok:
	case a.packet.Answerer != nil && a.number() == protocolUDP:
		if err := s.reply(a, got); err != nil {
			a.end(Arrival{Where: Nowhere, Err: fmt.Errorf("answer it: %w", err)})
		}
	default:
		a.end(got)
	}
}

// left is told by the wire of each frame that left the namespace.
func (s *session) left(f frame) {
	if a, ok := s.byPort[flow{f.protocol, f.to.Port()}]; ok && a.packet.Inbound {
		switch {
		case f.flags&(flagSYN|flagACK) == flagSYN|flagACK:
			s.wire.proceed(a, f, s.hardware(a.packet))
		case f.flags&flagRST != 0:
			a.end(Arrival{Where: Nowhere, Err: unix.ECONNREFUSED})
		}
		return
	}
	a, ok := s.byPort[flow{f.protocol, f.from.Port()}]
	switch got := (Arrival{Where: Outside, At: f.to, From: f.from}); {
	case !ok || a.packet.Inbound:
	case f.protocol == protocolTCP && f.flags&(flagSYN|flagACK|flagRST) == flagSYN:
		a.end(got)
		s.wire.refuse(f)
	case f.protocol == protocolUDP && string(f.payload) == string(a.token[:]) && a.packet.Answered:
		s.answer(a, f)
	case f.protocol == protocolUDP && string(f.payload) == string(a.token[:]):
		a.end(got)
	}
}

// close takes the session's sockets and rules away.
func (s *session) close() error {
	var errs []error
	for _, a := range s.attempts {
		if a.socket != nil {
			errs = append(errs, a.socket.Close())
		}
	}
	for _, c := range s.catchers {
		errs = append(errs, c.Close())
	}
	for _, l := range s.standIns {
		errs = append(errs, l.Close())
	}
	s.serving.Wait()
	if s.steering != nil {
		errs = append(errs, s.steering.Close())
	}
	s.remember()
	return errors.Join(errs...)
}
