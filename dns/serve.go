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
	// maxConnections limits the open connections of one address. A connection is closed after idleConnection without a
	// query, or when the client does not read an answer within answerWithin.
	maxConnections = 256
	idleConnection = 10 * time.Second
	answerWithin   = 5 * time.Second
)

// Reasons for dropped queries, as values of the metric's label.
const (
	dropSource    = "source"
	dropMalformed = "malformed"
	dropFull      = "limit"
	dropIdle      = "idle"
)

// serveUDP answers local names and cached names at once. Other queries are forwarded by goroutines.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	buffer, room := make([]byte, maxUDP), make([]byte, 0, dns.MaxMsgSize)
	packets := newPackets(conn)
	retry := newErrorBackoff(s.config.Logger.With("protocol", "udp", "address", conn.LocalAddr()))
	for {
		n, from, err := packets.read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if err := retry.wait(ctx, err); err != nil {
				return fmt.Errorf("DNS over UDP on %s: %w", conn.LocalAddr(), err)
			}
			continue
		}
		retry.reset()
		if !s.guard.admits(from.address.Addr()) {
			s.metrics.dropped.WithLabelValues(dropSource).Inc()
			continue
		}
		s.conf.check(s.config.Now())
		if out := s.serveFast(buffer[:n], room); out != nil {
			s.metrics.requests.Inc()
			packets.write(out, from)
			continue
		}
		q, out := s.receive(buffer[:n], false)
		if q == nil || out != nil {
			packets.write(out, from)
			continue
		}
		s.forwardUDP(ctx, packets, q, from, &waiting)
	}
}

// receive parses a query, and answers it if no resolver is needed.
func (s *Server) receive(wire []byte, tcp bool) (*query, []byte) {
	s.metrics.requests.Inc()
	s.conf.check(s.config.Now())
	q, refusal := parseQuery(wire, tcp)
	switch {
	case q == nil && refusal == nil:
		s.metrics.dropped.WithLabelValues(dropMalformed).Inc()
		return nil, nil
	case q == nil:
		s.metrics.answers.WithLabelValues(sourceRefused).Inc()
		return nil, refusal
	}
	return q, s.answerLocally(q)
}

// forwardUDP forwards a query in a goroutine, unless too many queries are being forwarded.
func (s *Server) forwardUDP(ctx context.Context, packets *packets, q *query, from peer, waiting *sync.WaitGroup) {
	if !s.enter() {
		packets.write(q.fail(rcodeBusy), from)
		return
	}
	q.spelling = append([]byte(nil), q.spelling...) // the caller reuses the buffer
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
		s.metrics.dropped.WithLabelValues(dropFull).Inc()
		return false
	}
}

func (s *Server) leave() { <-s.slots }

func (s *Server) serveTCP(ctx context.Context, listener *net.TCPListener) error {
	var open sync.WaitGroup
	defer open.Wait()
	limit := &connLimit{conns: map[*clientConn]struct{}{}}
	retry := newErrorBackoff(s.config.Logger.With("protocol", "tcp", "address", listener.Addr()))
	for {
		conn, err := listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			if err := retry.wait(ctx, err); err != nil {
				return fmt.Errorf("DNS over TCP on %s: %w", listener.Addr(), err)
			}
			continue
		}
		retry.reset()
		client := s.admit(conn, limit)
		if client == nil {
			_ = conn.Close()
			continue
		}
		open.Go(func() {
			defer limit.remove(client)
			s.serveConn(ctx, client, limit)
		})
	}
}

// admit adds a connection to the limiter. It returns nil when the client's address is not allowed, or no slot is free.
func (s *Server) admit(conn *net.TCPConn, limit *connLimit) *clientConn {
	if !s.guard.admits(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()) {
		s.metrics.dropped.WithLabelValues(dropSource).Inc()
		return nil
	}
	client, evicted := limit.admit(conn)
	switch {
	case client == nil:
		s.metrics.dropped.WithLabelValues(dropFull).Inc()
	case evicted:
		s.metrics.dropped.WithLabelValues(dropIdle).Inc()
	}
	return client
}

// maxPipelined limits the concurrently forwarded queries of one connection.
const maxPipelined = 16

// serveConn answers the queries of a TCP connection. It answers local and cached names at once and forwards other
// queries concurrently, so answers may be out of order (RFC 7766, section 6.2.1.1).
func (s *Server) serveConn(ctx context.Context, conn *clientConn, limit *connLimit) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	t := &tcpSession{conn: conn.TCPConn}
	var forwarding sync.WaitGroup
	defer forwarding.Wait() // also when the client has closed its side
	places := make(chan struct{}, maxPipelined)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idleConnection))
		wire, err := readFramed(conn)
		if err != nil {
			return
		}
		q, out := s.receive(wire, true)
		if q == nil || out != nil {
			if !t.send(out) {
				return
			}
			limit.touch(conn)
			continue
		}
		places <- struct{}{}
		limit.begin(conn)
		forwarding.Go(func() {
			defer func() { <-places }()
			defer limit.end(conn)
			t.send(s.forwardedByTCP(ctx, q))
		})
	}
}

// tcpSession serializes the answers on one connection.
type tcpSession struct {
	mu   sync.Mutex
	conn *net.TCPConn
}

// send sends an answer. It closes the connection if the answer is empty or cannot be sent.
func (t *tcpSession) send(answer []byte) bool {
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

// readFramed reads a message with its length prefix. It returns an error for long messages: queries are small.
func readFramed(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > maxUDP {
		return nil, fmt.Errorf("a query of %d bytes", n)
	}
	wire := make([]byte, n)
	_, err := io.ReadFull(r, wire)
	return wire, err
}
