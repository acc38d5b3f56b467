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
	// safeUDP is a size of answers that crosses any network in one piece: fragments are easily forged.
	safeUDP = 1232
	// mostForeign is how many answers that do not fit are passed over before UDP is no longer trusted with a question.
	mostForeign = 16
	firstRest   = time.Second
	longestRest = 30 * time.Second
)

// upstream is a resolver of resolv.conf, and how it does.
type upstream struct {
	address netip.AddrPort
	tcpOnly bool
	now     func() time.Time

	mu       sync.Mutex
	failures int // in a row
	resting  time.Time
	lastErr  error
}

// up says whether it is worth asking. After failures a resolver rests, for longer each time; then one question tries it.
func (u *upstream) up() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failures == 0 || !u.now().Before(u.resting)
}

func (u *upstream) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lastErr = err; err == nil {
		u.failures = 0
		return
	}
	u.failures++
	u.resting = u.now().Add(min(firstRest<<min(u.failures-1, 10), longestRest))
}

// Reasons to ask by TCP instead. One is that the answer was too large, the others that it may be forged.
var (
	errTruncated = errors.New("the answer was truncated")
	errCase      = errors.New("the answer does not spell the name as it was asked")
	errForeign   = errors.New("too many answers came that do not belong to the question")
)

// ask puts a question, by UDP unless that will not do.
func (u *upstream) ask(ctx context.Context, q question) (*dns.Msg, error) {
	m, err := u.askOnce(ctx, q, true)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		m, err = u.askOnce(ctx, q, false) // it may be of before EDNS
	}
	if err != nil {
		return nil, fmt.Errorf("resolver %s: %w", u.address, err)
	}
	return m, nil
}

func (u *upstream) askOnce(ctx context.Context, q question, edns bool) (*dns.Msg, error) {
	if u.tcpOnly {
		return u.exchange(ctx, "tcp", q, edns)
	}
	m, err := u.exchange(ctx, "udp", q, edns)
	switch {
	case errors.Is(err, errCase):
		return u.doubted(ctx, q, edns)
	case errors.Is(err, errTruncated), errors.Is(err, errForeign):
		return u.exchange(ctx, "tcp", q, edns)
	}
	return m, err
}

// doubted asks again after an answer that did not keep the case of letters. That is a forged one, or of a resolver that
// keeps it never; if it cannot be asked by TCP either, a second answer to a question with another id and port will do:
// whoever forged the first would have to guess all that again.
func (u *upstream) doubted(ctx context.Context, q question, edns bool) (*dns.Msg, error) {
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
	return nil, fmt.Errorf("%w, and not by TCP: %w", errCase, err)
}

// exchange uses a socket of its own, whose port the kernel draws: who would forge an answer has to guess it, the id and
// the spelling.
func (u *upstream) exchange(ctx context.Context, network string, q question, edns bool) (*dns.Msg, error) {
	conn, err := u.dial(ctx, network)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: largestUDP}
	asked := outgoing(q, edns)
	if err := c.WriteMsg(asked); err != nil {
		return nil, err
	}
	for range mostForeign {
		m, spelling, err := readMessage(c)
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("no answer by %s in time: %w", network, ctx.Err())
			}
			return nil, err
		}
		if m == nil || !belongs(m, asked) {
			continue
		}
		return m, verdict(m, asked, spelling, network)
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

// largest are buffers for whatever may come by UDP, of which most is small.
var largest = sync.Pool{New: func() any { return new([largestUDP]byte) }}

// readMessage gives nil for one that cannot be read. The question's name, to which other names in the message point, gets
// lower case letters again: how it was spelt comes beside the message.
func readMessage(c *dns.Conn) (m *dns.Msg, spelling string, err error) {
	var buffer []byte
	if _, isTCP := c.Conn.(*net.TCPConn); isTCP {
		buffer, err = c.ReadMsgHeader(nil)
	} else {
		large := largest.Get().(*[largestUDP]byte)
		var n int
		n, err = c.Conn.Read(large[:])
		buffer = bytes.Clone(large[:max(n, 0)])
		largest.Put(large)
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

// lower takes the lengths of labels for letters too, which none of them is.
func lower(name []byte) {
	for i, b := range name {
		if b >= 'A' && b <= 'Z' {
			name[i] = b - 'A' + 'a'
		}
	}
}

func outgoing(q question, edns bool) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired, m.CheckingDisabled = true, q.nocheck
	m.Question = []dns.Question{{Name: scramble(q.name), Qtype: q.qtype, Qclass: q.class}}
	if edns {
		m.SetEdns0(safeUDP, q.dnssec)
	}
	return m
}

// scramble draws the case of each letter.
func scramble(name string) string {
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

func belongs(m, asked *dns.Msg) bool {
	return m.Response && m.Id == asked.Id && m.Opcode == dns.OpcodeQuery && (len(m.Question) == 1 &&
		m.Question[0].Qtype == asked.Question[0].Qtype && m.Question[0].Qclass == asked.Question[0].Qclass &&
		strings.EqualFold(m.Question[0].Name, asked.Question[0].Name))
}

func verdict(m, asked *dns.Msg, spelling, network string) error {
	switch {
	case network == "udp" && spelling != asked.Question[0].Name:
		return errCase
	case network == "udp" && m.Truncated:
		return errTruncated
	case m.Truncated:
		return errors.New("the answer was truncated even by TCP")
	}
	return nil
}
