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
	// maxConnections limits the open TCP connections per listen address.
	maxConnections = 256
	// idleConnection is the time without a query after which the server closes a TCP connection.
	idleConnection = 10 * time.Second
	// writeTimeout is the timeout for sending a response on a TCP connection. It expires if the client does not read.
	writeTimeout = 5 * time.Second
)

// Reasons for dropped packets and connections: values of the label "reason" of pilotfish_dns_dropped_total.
const (
	dropSource    = "source"    // the client's address is not allowed
	dropMalformed = "malformed" // the message is not a DNS query
	dropFull      = "limit"     // too many queries wait for resolvers, or all connections have pending queries
	dropIdle      = "idle"      // an idle connection was closed in favor of a new one
)

// serveUDP serves queries on a UDP socket until ctx ends. It answers queries from the name table and the cache itself,
// and forwards other queries in goroutines.
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

// receive parses a query and answers it from the name table or the cache. It returns a query without a response if the
// query must be forwarded. If the message is not a valid query, it returns a nil query, and an error response or nil.
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

// forwardUDP forwards a query in a goroutine. If too many queries are being forwarded, it responds with SERVFAIL.
func (s *Server) forwardUDP(ctx context.Context, packets *packets, q *query, from peer, waiting *sync.WaitGroup) {
	if !s.enter() {
		packets.write(q.fail(rcodeBusy), from)
		return
	}
	q.spelling = append([]byte(nil), q.spelling...) // the caller reuses the buffer that it refers to
	waiting.Go(func() {
		defer s.leave()
		packets.write(s.forwarded(ctx, q), from)
	})
}

// enter reserves one of the maxWaiting slots for queries that wait for a resolver. It returns false if all are used.
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

// admit adds a connection to limit, which may close an idle connection for it. admit returns nil if the client's
// address is not allowed, or if the limit is reached and all connections have pending queries.
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

// maxPipelined limits how many queries of one TCP connection are forwarded concurrently.
const maxPipelined = 16

// serveConn serves the queries of a TCP connection. It answers queries from the name table and the cache immediately,
// and forwards other queries concurrently. Responses may therefore be out of order (RFC 7766, section 6.2.1.1).
func (s *Server) serveConn(ctx context.Context, conn *clientConn, limit *connLimit) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	t := &tcpSession{conn: conn.TCPConn}
	var forwarding sync.WaitGroup
	defer forwarding.Wait() // send pending responses even after the client has closed its side
	slots := make(chan struct{}, maxPipelined)
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
		slots <- struct{}{}
		limit.begin(conn)
		forwarding.Go(func() {
			defer func() { <-slots }()
			defer limit.end(conn)
			t.send(s.forwardedByTCP(ctx, q))
		})
	}
}

// tcpSession serializes the responses on one TCP connection.
type tcpSession struct {
	mu   sync.Mutex
	conn *net.TCPConn
}

// send sends a response. If the response is empty or cannot be sent, it closes the connection and returns false.
func (t *tcpSession) send(response []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(response) > 0 {
		_ = t.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := t.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(response))), response...)); err == nil {
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

// readFramed reads a message with a length prefix. It returns an error for a message larger than maxUDP, because
// queries are small.
func readFramed(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > maxUDP {
		return nil, fmt.Errorf("the query of %d bytes exceeds the limit of %d", n, maxUDP)
	}
	wire := make([]byte, n)
	_, err := io.ReadFull(r, wire)
	return wire, err
}
