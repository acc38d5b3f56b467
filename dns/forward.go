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
	// mostFlights bounds the questions that are on their way to resolvers.
	mostFlights = 512
	// patience is how long one who asks waits before a stale answer will do, after RFC 8767.
	patience = 1800 * time.Millisecond
)

var (
	errNoResolver = errors.New("there is no resolver to ask")
	errBusy       = errors.New("too many questions are on their way to resolvers")
)

// forwarder asks resolvers what the mesh does not know.
type forwarder struct {
	ctx      context.Context // of the flights, which go on when those who asked have gone
	timeout  time.Duration
	parallel bool
	staleFor time.Duration
	now      func() time.Time
	log      *slog.Logger
	metrics  *metrics
	cache    *cache
	isOurs   func(netip.AddrPort) bool

	mu      sync.Mutex
	servers []*upstream
	rotate  bool
	flights map[question]*flight
	flying  sync.WaitGroup
}

// flight is one question on its way; all who ask the same wait for it.
type flight struct {
	done   chan struct{}
	answer *answer
	err    error
}

// use takes the resolvers of another resolv.conf. Those that stay keep their health. Our own address is left out, or
// questions would go round for ever.
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
			f.log.Warn("a resolver is this server itself, and is not asked", "resolver", address)
			continue
		}
		u := known[address]
		if u == nil || u.tcpOnly != conf.useTCP {
			u = &upstream{address: address, tcpOnly: conf.useTCP, now: f.now}
		}
		f.servers = append(f.servers, u)
	}
}

// resolve answers from the cache or by asking. source says which it was.
func (f *forwarder) resolve(ctx context.Context, q question) (a *answer, source string, err error) {
	held := f.cache.get(q)
	if held != nil && held.fresh(f.now()) {
		return held, sourceCache, nil
	}
	fl, err := f.join(q)
	if err != nil {
		return f.stale(held, err)
	}
	var enough <-chan time.Time
	if held != nil {
		if !f.anyUp() {
			return f.stale(held, errNoResolver)
		}
		timer := time.NewTimer(patience)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case <-fl.done:
	case <-enough:
		return f.stale(held, context.DeadlineExceeded)
	case <-ctx.Done():
		return nil, sourceFailed, ctx.Err()
	}
	if fl.err != nil {
		return f.stale(held, fl.err)
	}
	if held != nil && failed(fl.answer.rcode) {
		return held, sourceStale, nil
	}
	return fl.answer, sourceResolver, nil
}

func (f *forwarder) stale(held *answer, err error) (*answer, string, error) {
	if held != nil {
		return held, sourceStale, nil
	}
	return nil, sourceFailed, err
}

// failed holds for answers after which another resolver may know better.
func failed(rcode int) bool { return rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError }

// join finds the flight of a question or starts it.
func (f *forwarder) join(q question) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flights[q]; fl != nil {
		return fl, nil
	}
	switch {
	case len(f.flights) >= mostFlights:
		return nil, errBusy
	case f.ctx.Err() != nil:
		return nil, f.ctx.Err()
	}
	fl := &flight{done: make(chan struct{})}
	f.flights[q] = fl
	servers := f.choose()
	f.flying.Go(func() { f.fly(fl, q, servers) })
	return fl, nil
}

func (f *forwarder) fly(fl *flight, q question, servers []*upstream) {
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout)
	defer cancel()
	fl.answer, fl.err = f.ask(ctx, q, servers)
	if fl.err == nil && fl.answer.life > 0 {
		f.cache.put(q, fl.answer, fl.answer.life+f.staleFor)
	}
	f.mu.Lock()
	delete(f.flights, q)
	f.mu.Unlock()
	close(fl.done)
}

// choose gives the resolvers in the order to ask: those that answer first; the caller holds the lock.
func (f *forwarder) choose() []*upstream {
	servers := slices.Clone(f.servers)
	if f.rotate {
		rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	}
	var up, resting []*upstream
	for _, u := range servers {
		if u.up() {
			up = append(up, u)
		} else {
			resting = append(resting, u)
		}
	}
	return append(up, resting...)
}

func (f *forwarder) anyUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.servers, (*upstream).up)
}

func (f *forwarder) ask(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	switch {
	case len(servers) == 0:
		return nil, errNoResolver
	case f.parallel && len(servers) > 1:
		return f.askAll(ctx, q, servers)
	case len(servers) == 1:
		servers = append(servers, servers[0]) // a packet may be lost
	}
	return f.askInTurn(ctx, q, servers)
}

// askInTurn gives each resolver its share of the time that is left. When none gives a good answer, a bad one will do.
func (f *forwarder) askInTurn(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	var bad *answer
	var errs []error
	deadline, _ := ctx.Deadline()
	for i, u := range servers {
		share := time.Until(deadline) / time.Duration(len(servers)-i)
		a, err := f.askOne(ctx, q, u, share)
		switch {
		case err != nil:
			errs = append(errs, err)
		case failed(a.rcode):
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

// askAll takes the first good answer.
func (f *forwarder) askAll(ctx context.Context, q question, servers []*upstream) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		answer *answer
		err    error
	}
	outcomes := make(chan outcome, len(servers))
	for _, u := range servers {
		f.flying.Go(func() {
			a, err := f.askOne(ctx, q, u, f.timeout)
			outcomes <- outcome{a, err}
		})
	}
	var bad *answer
	var errs []error
	for range servers {
		switch o := <-outcomes; {
		case o.err != nil:
			errs = append(errs, o.err)
		case failed(o.answer.rcode):
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

func (f *forwarder) askOne(ctx context.Context, q question, u *upstream, timeout time.Duration) (*answer, error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	started := time.Now()
	f.metrics.upstreamRequests.Inc()
	m, err := u.ask(within, q)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err() // another was faster, which says nothing of this one
	}
	f.metrics.upstreamTime.Observe(time.Since(started).Seconds())
	u.note(err)
	if err != nil {
		f.metrics.upstreamFailures.Inc()
		return nil, err
	}
	if failed(m.Rcode) {
		f.metrics.upstreamFailures.Inc()
	}
	a, err := newAnswer(onTopic(m), u.address.String(), q.dnssec, f.now())
	if err != nil {
		return nil, fmt.Errorf("resolver %s: its answer cannot be passed on: %w", u.address, err)
	}
	return a, nil
}

// onTopic leaves in the answer what the question's name and the aliases that start there lead to: what a lying resolver
// adds of other names goes nowhere.
func onTopic(m *dns.Msg) *dns.Msg {
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
			rr.Header().Name = m.Question[0].Name // some copy the letters' case that was drawn for the question
		}
		return !names[strings.ToLower(rr.Header().Name)] || rr.Header().Class != m.Question[0].Qclass
	})
	return m
}
