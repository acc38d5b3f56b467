package packettest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// run sends all packets and waits until they arrive or time out.
func (s *session) run(ctx context.Context) {
	for _, a := range s.attempts {
		a.began = time.Now()
	}
	for _, c := range s.receivers {
		s.serving.Go(func() { c.serve(s.handleToken, s.cfg.Timeout) })
	}
	reading := make(chan struct{})
	go func() { defer close(reading); s.farEnd.read(s.handleFrame) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if len(s.steering.egress.sets) > 0 || s.steering.replies.known != nil {
		s.serving.Go(func() { s.pollSets(ctx) })
	}
	for _, a := range s.attempts {
		select {
		case <-a.done: // prepare failed
			continue
		default:
		}
		if a.packet.Inbound {
			_, far := s.packetEnds(a.packet)
			s.farEnd.sendFirst(a, netip.AddrPortFrom(far, a.port), s.hardware(a.packet))
			continue
		}
		s.serving.Go(func() {
			a.send(ctx)
			if a.packet.Answerer != nil {
				s.awaitReply(ctx, a)
			}
		})
	}
	for _, a := range s.attempts {
		select {
		case <-a.done:
		case <-ctx.Done():
			s.handleTimeout(a)
		}
	}
	s.stopReading(reading)
}

// hardware returns the source MAC address for the frames of a packet. It determines through which interface the frames
// arrive.
func (s *session) hardware(p Packet) [6]byte {
	if by := s.veth.testedInterfaces[p.Interface]; by != nil {
		return by.hardware
	}
	return ownHardware
}

// stopReading stops the reader of the far end. The next session starts another one.
func (s *session) stopReading(reading <-chan struct{}) {
	_ = s.farEnd.file.SetReadDeadline(time.Unix(1, 0))
	<-reading
	_ = s.farEnd.file.SetReadDeadline(time.Time{})
}

// handleToken completes the attempt whose token arrived at a receiver. If the attempt needs a reply first, it sends the
// reply.
func (s *session) handleToken(t token, got Arrival) {
	a, ok := s.byToken[t]
	switch {
	case !ok:
	case a.packet.Answerer != nil && a.protocolNumber() == protocolUDP:
		if err := s.replyFromNamespace(a, got); err != nil {
			a.finish(Arrival{Where: Nowhere, Err: fmt.Errorf("sending the reply to a test packet: %w", err)})
		}
	default:
		a.finish(got)
	}
}

// handleFrame handles a frame that left the namespace through the harness's link.
func (s *session) handleFrame(f frame) {
	if a, ok := s.byPort[flow{f.protocol, f.to.Port()}]; ok && a.packet.Inbound {
		switch {
		case f.flags&(flagSYN|flagACK) == flagSYN|flagACK:
			s.farEnd.completeHandshake(a, f, s.hardware(a.packet))
		case f.flags&flagRST != 0:
			a.finish(Arrival{Where: Nowhere, Err: unix.ECONNREFUSED})
		}
		return
	}
	a, ok := s.byPort[flow{f.protocol, f.from.Port()}]
	switch got := (Arrival{Where: Outside, At: f.to, From: f.from}); {
	case !ok || a.packet.Inbound:
	case f.protocol == protocolTCP && f.flags&(flagSYN|flagACK|flagRST) == flagSYN:
		a.finish(got)
		s.farEnd.resetConnection(f)
	case f.protocol == protocolUDP && string(f.payload) == string(a.token[:]) && a.packet.Answered:
		s.replyFromOutside(a, f)
	case f.protocol == protocolUDP && string(f.payload) == string(a.token[:]):
		a.finish(got)
	}
}

// close removes the session's sockets and rules.
func (s *session) close() error {
	var errs []error
	for _, a := range s.attempts {
		if a.socket != nil {
			errs = append(errs, a.socket.Close())
		}
	}
	for _, c := range s.receivers {
		errs = append(errs, c.Close())
	}
	for _, l := range s.proxyListeners {
		errs = append(errs, l.Close())
	}
	s.serving.Wait()
	if s.steering != nil {
		errs = append(errs, s.steering.Close())
	}
	s.recordConnections()
	return errors.Join(errs...)
}
