package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// mostConnections are open at a time, idleConnection is how long one is without a question, and answerWithin how long
	// it may take to read its answer.
	mostConnections = 256
	idleConnection  = 10 * time.Second
	answerWithin    = 5 * time.Second
)

// Why something is dropped, as the metric's label names it.
const (
	dropStranger  = "source"
	dropMalformed = "malformed"
	dropCrowd     = "limit"
)

// serveUDP answers at once what it can; what has to be forwarded waits elsewhere.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	buffer, room := make([]byte, largestUDP), make([]byte, 0, dns.MaxMsgSize)
	packets := newPackets(conn)
	setback := setback{log: s.config.Logger.With("protocol", "udp", "address", conn.LocalAddr())}
	for {
		n, from, err := packets.read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if err := setback.endure(ctx, err); err != nil {
				return fmt.Errorf("DNS by UDP at %s: %w", conn.LocalAddr(), err)
			}
			continue
		}
		setback.over()
		if !s.guard.admits(from.address.Addr()) {
			s.metrics.dropped.WithLabelValues(dropStranger).Inc()
			continue
		}
		s.conf.look(s.config.Now())
		if out := s.quick(buffer[:n], room); out != nil {
			s.metrics.requests.Inc()
			packets.write(out, from)
			continue
		}
		q, out := s.take(buffer[:n], false)
		if q == nil || out != nil {
			packets.write(out, from)
			continue
		}
		s.later(ctx, packets, q, from, &waiting)
	}
}

// take reads a question and answers it if no resolver is needed.
func (s *Server) take(wire []byte, tcp bool) (*query, []byte) {
	s.metrics.requests.Inc()
	s.conf.look(s.config.Now())
	q, refusal := parseQuery(wire, tcp)
	switch {
	case q == nil && refusal == nil:
		s.metrics.dropped.WithLabelValues(dropMalformed).Inc()
		return nil, nil
	case q == nil:
		s.metrics.answers.WithLabelValues(sourceRefused).Inc()
		return nil, refusal
	}
	return q, s.local(q)
}

// later forwards a question, unless too many are being forwarded.
func (s *Server) later(ctx context.Context, packets *packets, q *query, from peer, waiting *sync.WaitGroup) {
	if !s.enter() {
		packets.write(q.fail(rcodeBusy), from)
		return
	}
	q.spelling = append([]byte(nil), q.spelling...) // the buffer is used again
	waiting.Go(func() {
		defer s.leave()
		packets.write(s.forwarded(ctx, q), from)
	})
}

func (s *Server) enter() bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		s.metrics.dropped.WithLabelValues(dropCrowd).Inc()
		return false
	}
}

func (s *Server) leave() { <-s.slots }

func (s *Server) serveTCP(ctx context.Context, listener *net.TCPListener) error {
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, mostConnections)
	setback := setback{log: s.config.Logger.With("protocol", "tcp", "address", listener.Addr())}
	for {
		conn, err := listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			if err := setback.endure(ctx, err); err != nil {
				return fmt.Errorf("DNS by TCP at %s: %w", listener.Addr(), err)
			}
			continue
		}
		setback.over()
		if !s.welcome(conn, places) {
			_ = conn.Close()
			continue
		}
		open.Go(func() {
			defer func() { <-places }()
			s.converse(ctx, conn)
		})
	}
}

// welcome takes a place for a connection, if there is one and it comes from where it may.
func (s *Server) welcome(conn *net.TCPConn, places chan struct{}) bool {
	if !s.guard.admits(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()) {
		s.metrics.dropped.WithLabelValues(dropStranger).Inc()
		return false
	}
	select {
	case places <- struct{}{}:
		return true
	default:
		s.metrics.dropped.WithLabelValues(dropCrowd).Inc()
		return false
	}
}

// besideEachOther is how many questions of one connection are forwarded at once.
const besideEachOther = 16

// converse answers the questions of a connection: at once those whose answer is known, and beside them those that are
// forwarded, in the order in which their answers come (RFC 7766, section 6.2.1.1).
func (s *Server) converse(ctx context.Context, conn *net.TCPConn) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	t := &talk{conn: conn}
	var forwarding sync.WaitGroup
	defer forwarding.Wait() // also when the client has no more questions
	places := make(chan struct{}, besideEachOther)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idleConnection))
		wire, err := readFramed(conn)
		if err != nil {
			return
		}
		q, out := s.take(wire, true)
		if q == nil || out != nil {
			if !t.say(out) {
				return
			}
			continue
		}
		places <- struct{}{}
		forwarding.Go(func() {
			defer func() { <-places }()
			t.say(s.forwardedByTCP(ctx, q))
		})
	}
}

// talk is what is said on one connection.
type talk struct {
	mu   sync.Mutex
	conn *net.TCPConn
}

// say sends an answer, and ends the connection where there is none or it cannot be sent.
func (t *talk) say(answer []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(answer) > 0 {
		_ = t.conn.SetWriteDeadline(time.Now().Add(answerWithin))
		if _, err := t.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err == nil {
			return true
		}
	}
	_ = t.conn.Close()
	return false
}

func (s *Server) forwardedByTCP(ctx context.Context, q *query) []byte {
	if !s.enter() {
		return q.fail(rcodeBusy)
	}
	defer s.leave()
	return s.forwarded(ctx, q)
}

// readFramed reads a message with its length before it. Questions are small: one that is not comes from nobody's resolver.
func readFramed(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > largestUDP {
		return nil, fmt.Errorf("a question of %d bytes", n)
	}
	wire := make([]byte, n)
	_, err := io.ReadFull(r, wire)
	return wire, err
}
