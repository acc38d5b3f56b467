package dns

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// safeUDP is the maximum size of UDP responses that resolvers may send. Networks transport this size without
	// fragmentation, and fragments are easy to forge.
	safeUDP = 1232
	// maxForeign is the number of received messages that do not match the query, after which the query is repeated over
	// TCP.
	maxForeign = 16
	// firstRest is how long a resolver is considered unhealthy after the first failure. The time doubles with each
	// further failure, up to maxRest.
	firstRest = time.Second
	maxRest   = 30 * time.Second
)

// upstream is a resolver of resolv.conf and its health.
type upstream struct {
	address netip.AddrPort
	tcpOnly bool // the option use-vc is set
	now     func() time.Time

	mu       sync.Mutex
	failures int       // consecutive failures
	resting  time.Time // the resolver is considered unhealthy until this time
	lastErr  error
}

// isUp reports whether the resolver is considered healthy. After a failure it is considered unhealthy for a time that
// doubles with each further failure.
func (u *upstream) isUp() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failures == 0 || !u.now().Before(u.resting)
}

// recordResult updates the resolver's health with the result of a query.
func (u *upstream) recordResult(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lastErr = err; err == nil {
		u.failures = 0
		return
	}
	u.failures++
	u.resting = u.now().Add(min(firstRest<<min(u.failures-1, 10), maxRest))
}

// Reasons to repeat a query over TCP: the response was too large for UDP, or it may be forged.
var (
	errTruncated = errors.New("the response was truncated")
	errCase      = errors.New("the response does not repeat the name with the letter case of the query")
	errForeign   = errors.New("too many received messages do not match the query")
)

// query sends a question over UDP and, if the response is truncated or may be forged, again over TCP. With the option
// use-vc it uses only TCP. If the resolver responds with FORMERR or NOTIMP, query repeats the question without EDNS.
func (u *upstream) query(ctx context.Context, q question) (*dns.Msg, error) {
	m, err := u.queryOnce(ctx, q, true)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		m, err = u.queryOnce(ctx, q, false) // the resolver may not support EDNS
	}
	if err != nil {
		return nil, fmt.Errorf("resolver %s: %w", u.address, err)
	}
	return m, nil
}

func (u *upstream) queryOnce(ctx context.Context, q question, edns bool) (*dns.Msg, error) {
	if u.tcpOnly {
		return u.exchange(ctx, "tcp", q, edns)
	}
	m, err := u.exchange(ctx, "udp", q, edns)
	switch {
	case errors.Is(err, errCase):
		return u.retryCase(ctx, q, edns)
	case errors.Is(err, errTruncated), errors.Is(err, errForeign):
		return u.exchange(ctx, "tcp", q, edns)
	}
	return m, err
}

// retryCase repeats a query over TCP after a response that did not repeat the letter case of the name. Either the
// response was forged, or the resolver does not preserve the case. If TCP fails, retryCase sends another UDP query and
// accepts the response regardless of its case. An attacker would have to guess the new ID and port as well.
func (u *upstream) retryCase(ctx context.Context, q question, edns bool) (*dns.Msg, error) {
	within, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		within, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	defer cancel()
	m, err := u.exchange(within, "tcp", q, edns)
	if err == nil || ctx.Err() != nil {
		return m, err
	}
	m, again := u.exchange(ctx, "udp", q, edns)
	if again == nil || errors.Is(again, errCase) && !m.Truncated {
		return m, nil
	}
	return nil, fmt.Errorf("%w; TCP failed too: %w", errCase, err)
}

// exchange sends a query and returns the response. It uses a new socket with a random port. An attacker who forges a
// response must guess the port, the ID and the letter case of the name.
func (u *upstream) exchange(ctx context.Context, network string, q question, edns bool) (*dns.Msg, error) {
	conn, err := u.dial(ctx, network)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: maxUDP}
	sent := outgoing(q, edns)
	if err := c.WriteMsg(sent); err != nil {
		return nil, err
	}
	for range maxForeign {
		m, spelling, err := readMessage(c)
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("no response over %s in time: %w", network, ctx.Err())
			}
			return nil, err
		}
		if m == nil || !belongs(m, sent) {
			continue
		}
		return m, checkResponse(m, sent, spelling, network)
	}
	return nil, errForeign
}

func (u *upstream) dial(ctx context.Context, network string) (net.Conn, error) {
	if network == "udp" {
		return net.DialUDP(network, nil, net.UDPAddrFromAddrPort(u.address))
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, u.address.String())
}

// udpBuffers is a pool of buffers for received UDP messages. Messages are copied out of them, because most are small.
var udpBuffers = sync.Pool{New: func() any { return new([maxUDP]byte) }}

// readMessage reads a message, and returns nil if it is invalid. It converts the question's name to lower case, which
// also affects all names that are compression pointers to it. spelling is the question's name as received.
func readMessage(c *dns.Conn) (m *dns.Msg, spelling string, err error) {
	var buffer []byte
	if _, isTCP := c.Conn.(*net.TCPConn); isTCP {
		buffer, err = c.ReadMsgHeader(nil)
	} else {
		large := udpBuffers.Get().(*[maxUDP]byte)
		var n int
		n, err = c.Conn.Read(large[:])
		buffer = bytes.Clone(large[:max(n, 0)])
		udpBuffers.Put(large)
	}
	if err != nil {
		return nil, "", err
	}
	if end := skipName(buffer, headerBytes); end > headerBytes && buffer[headerBytes] < 0xC0 {
		if spelling, _, err = dns.UnpackDomainName(buffer, headerBytes); err != nil {
			return nil, "", nil
		}
		lower(buffer[headerBytes:end])
	}
	m = new(dns.Msg)
	if m.Unpack(buffer) != nil {
		return nil, "", nil
	}
	return m, spelling, nil
}

// lower converts a name in wire format to lower case in place. It leaves length bytes unchanged, because they are at
// most 63, below "A" (65).
func lower(name []byte) {
	for i, b := range name {
		if b >= 'A' && b <= 'Z' {
			name[i] = b - 'A' + 'a'
		}
	}
}

// outgoing returns a query message with a random ID and random letter case of the name.
func outgoing(q question, edns bool) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired, m.CheckingDisabled = true, q.nocheck
	m.Question = []dns.Question{{Name: randomizeCase(q.name), Qtype: q.qtype, Qclass: q.class}}
	if edns {
		m.SetEdns0(safeUDP, q.dnssec)
	}
	return m
}

// randomizeCase returns the name with a random case for each letter.
func randomizeCase(name string) string {
	coins := make([]byte, len(name))
	_, _ = rand.Read(coins)
	spelled := []byte(name)
	for i, b := range spelled {
		if b >= 'a' && b <= 'z' && coins[i]&1 == 1 {
			spelled[i] = b - 'a' + 'A'
		}
	}
	return string(spelled)
}

// belongs reports whether m is a response to the query.
func belongs(m, query *dns.Msg) bool {
	return m.Response && m.Id == query.Id && m.Opcode == dns.OpcodeQuery && (len(m.Question) == 1 &&
		m.Question[0].Qtype == query.Question[0].Qtype && m.Question[0].Qclass == query.Question[0].Qclass &&
		strings.EqualFold(m.Question[0].Name, query.Question[0].Name))
}

// checkResponse returns an error if the response is truncated, or if it may be forged.
func checkResponse(m, query *dns.Msg, spelling, network string) error {
	switch {
	case network == "udp" && spelling != query.Question[0].Name:
		return errCase
	case network == "udp" && m.Truncated:
		return errTruncated
	case m.Truncated:
		return errors.New("the response was truncated even over TCP")
	}
	return nil
}
