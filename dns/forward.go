package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxInflight limits the number of different questions that are being forwarded.
	maxInflight = 512
	// staleAfter is how long a query waits for a resolver before the client receives a stale answer (RFC 8767).
	staleAfter = 1800 * time.Millisecond
)

var (
	errNoResolver = errors.New("no resolver is configured or responding")
	errBusy       = errors.New("too many queries wait for resolvers")
)

// forwarder forwards queries to resolvers. Concurrent queries with the same question share one request (single flight).
type forwarder struct {
	ctx      context.Context // for the requests, which continue after their clients have stopped waiting
	timeout  time.Duration   // of a request, including retries
	parallel bool
	staleFor time.Duration
	now      func() time.Time
	log      *slog.Logger
	metrics  *metrics
	cache    *cache
	isOurs   func(netip.AddrPort) bool // reports whether an address is one of this server's listen addresses

	mu       sync.Mutex
	servers  []*upstream
	rotate   bool // query the resolvers in random order
	inflight map[question]*inflight
	flying   sync.WaitGroup // goroutines that query resolvers
}

// inflight is a request to resolvers. All clients with the same question wait for done.
type inflight struct {
	done   chan struct{}
	answer *answer
	err    error
}

// use replaces the resolvers with those in conf. Resolvers that remain configured retain their health. use ignores this
// server's own addresses, because forwarding to them would cause a loop.
func (f *forwarder) use(conf resolvConf) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := make(map[netip.AddrPort]*upstream)
	for _, u := range f.servers {
		known[u.address] = u
	}
	f.servers, f.rotate = nil, conf.rotate
	for _, address := range conf.servers {
		if f.isOurs(address) {
			f.log.Warn("ignoring a configured resolver, because it is this DNS server itself", "resolver", address)
			continue
		}
		u := known[address]
		if u == nil || u.tcpOnly != conf.useTCP {
			u = &upstream{address: address, tcpOnly: conf.useTCP, now: f.now}
		}
		f.servers = append(f.servers, u)
	}
}

// resolve returns an answer from the cache or from a resolver, and its source for metrics. It returns a stale answer if
// the resolvers fail or are slow.
func (f *forwarder) resolve(ctx context.Context, q question) (a *answer, source string, err error) {
	held := f.cache.get(q)
	if held != nil && held.fresh(f.now()) {
		return held, sourceCache, nil
	}
	fl, err := f.join(q)
	if err != nil {
		return f.stale(held, err)
	}
	var slow <-chan time.Time // set only if the cache contains a stale answer
	if held != nil {
		if !f.anyUp() {
			return f.stale(held, errNoResolver)
		}
		timer := time.NewTimer(staleAfter)
		defer timer.Stop()
		slow = timer.C
	}
	select {
	case <-fl.done:
	case <-slow:
		return f.stale(held, context.DeadlineExceeded)
	case <-ctx.Done():
		return nil, sourceFailed, ctx.Err()
	}
	if fl.err != nil {
		return f.stale(held, fl.err)
	}
	if held != nil && isFailure(fl.answer.rcode) {
		return held, sourceStale, nil
	}
	return fl.answer, sourceResolver, nil
}

// stale returns the stale answer held, or err if held is nil.
func (f *forwarder) stale(held *answer, err error) (*answer, string, error) {
	if held != nil {
		return held, sourceStale, nil
	}
	return nil, sourceFailed, err
}

// isFailure reports whether a response code means that the resolver failed, so that another resolver should be queried.
func isFailure(rcode int) bool { return rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError }

// join returns the pending request for a question, or starts one.
func (f *forwarder) join(q question) (*inflight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.inflight[q]; fl != nil {
		return fl, nil
	}
	switch {
	case len(f.inflight) >= maxInflight:
		return nil, errBusy
	case f.ctx.Err() != nil:
		return nil, f.ctx.Err()
	}
	fl := &inflight{done: make(chan struct{})}
	f.inflight[q] = fl
	servers := f.choose()
	f.flying.Go(func() { f.start(fl, q, servers) })
	return fl, nil
}

// start sends a request, caches the answer and notifies the waiting clients.
func (f *forwarder) start(fl *inflight, q question, servers []*upstream) {
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout)
	defer cancel()
	fl.answer, fl.err = f.query(ctx, q, servers)
	if fl.err == nil && fl.answer.life > 0 {
		f.cache.put(q, fl.answer, fl.answer.life+f.staleFor)
	}
	f.mu.Lock()
	delete(f.inflight, q)
	f.mu.Unlock()
	close(fl.done)
}

// choose returns the resolvers in the order in which to query them, healthy ones first. The caller holds the lock.
func (f *forwarder) choose() []*upstream {
	servers := slices.Clone(f.servers)
	if f.rotate {
		rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	}
	var up, down []*upstream
	for _, u := range servers {
		if u.isUp() {
			up = append(up, u)
		} else {
			down = append(down, u)
		}
	}
	return append(up, down...)
}

func (f *forwarder) anyUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.servers, (*upstream).isUp)
}

func (f *forwarder) query(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	switch {
	case len(servers) == 0:
		return nil, errNoResolver
	case f.parallel && len(servers) > 1:
		return f.queryParallel(ctx, q, servers)
	case len(servers) == 1:
		servers = append(servers, servers[0]) // query it a second time, because a packet may be lost
	}
	return f.querySequentially(ctx, q, servers)
}

// querySequentially queries one resolver after the other until one succeeds. It divides the remaining time among them.
// If all fail, it returns the last failure response of a resolver, or an error if none responded.
func (f *forwarder) querySequentially(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	var bad *answer
	var errs []error
	deadline, _ := ctx.Deadline()
	for i, u := range servers {
		share := time.Until(deadline) / time.Duration(len(servers)-i)
		a, err := f.queryOne(ctx, q, u, share)
		switch {
		case err != nil:
			errs = append(errs, err)
		case isFailure(a.rcode):
			bad = a
		default:
			return a, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if bad != nil {
		return bad, nil
	}
	return nil, errors.Join(errs...)
}

// queryParallel queries all resolvers at once and returns the first successful answer. If all fail, it returns the last
// failure response of a resolver, or an error if none responded.
func (f *forwarder) queryParallel(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		answer *answer
		err    error
	}
	outcomes := make(chan outcome, len(servers))
	for _, u := range servers {
		f.flying.Go(func() {
			a, err := f.queryOne(ctx, q, u, f.timeout)
			outcomes <- outcome{a, err}
		})
	}
	var bad *answer
	var errs []error
	for range servers {
		switch o := <-outcomes; {
		case o.err != nil:
			errs = append(errs, o.err)
		case isFailure(o.answer.rcode):
			bad = o.answer
		default:
			return o.answer, nil
		}
	}
	if bad != nil {
		return bad, nil
	}
	return nil, errors.Join(errs...)
}

// queryOne queries one resolver and records its health.
func (f *forwarder) queryOne(ctx context.Context, q question, u *upstream, timeout time.Duration) (*answer, error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	started := time.Now()
	f.metrics.upstreamRequests.Inc()
	m, err := u.query(within, q)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err() // another resolver was faster, which is not a failure of this one
	}
	f.metrics.upstreamTime.Observe(time.Since(started).Seconds())
	u.recordResult(err)
	if err != nil {
		f.metrics.upstreamFailures.Inc()
		return nil, err
	}
	if isFailure(m.Rcode) {
		f.metrics.upstreamFailures.Inc()
	}
	a, err := newAnswer(removeUnrelated(m), u.address.String(), q.dnssec, f.now())
	if err != nil {
		return nil, fmt.Errorf("resolver %s: invalid response: %w", u.address, err)
	}
	return a, nil
}

// removeUnrelated removes records whose name is neither the question's name nor one of its aliases. A malicious
// resolver could otherwise add records for other names.
func removeUnrelated(m *dns.Msg) *dns.Msg {
	names := map[string]bool{strings.ToLower(m.Question[0].Name): true}
	for range 16 {
		before := len(names)
		for _, rr := range m.Answer {
			owner := strings.ToLower(rr.Header().Name)
			switch alias := rr.(type) {
			case *dns.CNAME:
				if names[owner] {
					names[strings.ToLower(alias.Target)] = true
				}
			case *dns.DNAME:
				names[owner] = names[owner] || dns.IsSubDomain(owner, strings.ToLower(m.Question[0].Name))
			}
		}
		if len(names) == before {
			break
		}
	}
	m.Answer = slices.DeleteFunc(m.Answer, func(rr dns.RR) bool {
		if strings.EqualFold(rr.Header().Name, m.Question[0].Name) {
			rr.Header().Name = m.Question[0].Name // some resolvers copy the random letter case of the query
		}
		return !names[strings.ToLower(rr.Header().Name)] || rr.Header().Class != m.Question[0].Qclass
	})
	return m
}
