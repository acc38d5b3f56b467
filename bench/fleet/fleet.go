// Package fleet is many clients of a control plane that behave as Envoys do, at little cost: what they get is booked, and
// not decoded but once for all of them.
package fleet

import (
	"context"
	"fmt"
	"io"
	"net/rpc"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options say who connects.
type Options struct {
	Address    string // of the control plane, plaintext
	Proxies    int
	Namespaces int    // ns0, ns1, …, which the proxies are spread over
	EnvoyMinor uint32 // of Envoy 1.x; 40 when zero
	// Slow and Refusing are how many clients there are besides that read next to nothing of what they get, and that refuse
	// everything and ask for it again at once.
	Slow, Refusing int
	// Patience is how long all may take; a minute when zero.
	Patience time.Duration
}

// Sign is by what a change is known: a text in responses of some types.
type Sign struct {
	Text  string
	Types []string // ends of type URLs, such as Cluster
}

func (s Sign) of(typeURL string) bool {
	return slices.ContainsFunc(s.Types, func(t string) bool { return strings.HasSuffix(typeURL, "."+t) })
}

// Report is what came to the clients.
type Report struct {
	Clients   int           // that are done
	P50, Max  time.Duration // until a client was done
	Last      time.Duration // until anything came to anyone for the last time
	Bytes     int64         // of all
	Responses int64
	Refused   int64 // responses that clients refused since they connected
}

// Fleet is the clients. Its methods are for net/rpc: it is in a process of its own, so that what the control plane costs
// can be told from what it costs.
type Fleet struct {
	decoder *decoder

	mu      sync.Mutex
	o       Options
	clients []*client
	others  []*client // that are not waited for
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  error
}

// New makes a fleet of nobody.
func New() *Fleet { return &Fleet{decoder: newDecoder(), stop: func() {}} }

// Serve answers another process until it goes.
func Serve(conn io.ReadWriteCloser) error {
	server, f := rpc.NewServer(), New()
	if err := server.Register(f); err != nil {
		return err
	}
	server.ServeConn(conn)
	f.halt()
	return nil
}

// Connect has new clients connect, in the place of those before, and waits until all have all that they ask for.
func (f *Fleet) Connect(o Options, report *Report) error {
	if o.EnvoyMinor == 0 {
		o.EnvoyMinor = 40
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	f.halt()
	f.o, f.clients = o, nil
	for i := range o.Proxies {
		c, err := f.newClient(i, o)
		if err != nil {
			return err
		}
		f.clients = append(f.clients, c)
	}
	var err error
	if f.others, err = f.bad(o); err != nil {
		return err
	}
	return f.connect(report)
}

// Reconnect has all clients lose their connections and come back, with what they have.
func (f *Fleet) Reconnect(_ struct{}, report *Report) error {
	f.halt()
	return f.connect(report)
}

// Disconnect has all clients go.
func (f *Fleet) Disconnect(_ struct{}, _ *Report) error {
	f.halt()
	f.clients, f.others = nil, nil
	return nil
}

func (f *Fleet) halt() {
	f.stop()
	f.running.Wait()
}

func (f *Fleet) connect(report *Report) error {
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	f.failed = nil
	f.reset()
	began := time.Now()
	for _, c := range slices.Concat(f.clients, f.others) {
		f.running.Go(func() { f.keep(ctx, c) })
	}
	return f.await(began, time.Second, func(c *client) time.Time { return c.settled }, report)
}

// keep connects again when a control plane says that it has too much to do.
func (f *Fleet) keep(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		err := c.run(ctx, f.o.Address)
		if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Unavailable || c.manner != asEnvoys {
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		if ctx.Err() == nil {
			f.mu.Lock()
			f.failed = fmt.Errorf("%s: %w", c.node.GetId(), err)
			f.mu.Unlock()
			return
		}
	}
}

func (f *Fleet) reset() {
	for _, c := range f.clients {
		c.mu.Lock()
		c.settled, c.marked, c.latest = time.Time{}, time.Time{}, time.Time{}
		c.mu.Unlock()
		c.bytes.Store(0)
		c.answers.Store(0)
	}
}

// Expect begins to look for a sign.
func (f *Fleet) Expect(sign Sign, _ *Report) error {
	f.reset()
	f.decoder.mu.Lock()
	f.decoder.sign = sign
	f.decoder.mu.Unlock()
	return nil
}

// Await waits until all clients have seen the sign and nothing has come for a while, and tells the times since a moment,
// in nanoseconds of the clock that all processes have.
func (f *Fleet) Await(since int64, report *Report) error {
	return f.await(time.Unix(0, since), 500*time.Millisecond, func(c *client) time.Time { return c.marked }, report)
}

// AwaitAny is Await of anything that comes.
func (f *Fleet) AwaitAny(since int64, report *Report) error {
	return f.await(time.Unix(0, since), 500*time.Millisecond, func(c *client) time.Time { return c.latest }, report)
}

func (f *Fleet) await(since time.Time, quiet time.Duration, done func(*client) time.Time, report *Report) error {
	deadline := time.Now().Add(f.o.Patience)
	for {
		took, latest := f.took(since, done)
		f.mu.Lock()
		err := f.failed
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if len(took) == len(f.clients) && time.Since(latest) > quiet {
			f.tell(report, took, latest.Sub(since))
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d clients of %d are done after %v", len(took), len(f.clients), f.o.Patience)
		}
		time.Sleep(20 * time.Millisecond) // the moments are noted by the clients
	}
}

func (f *Fleet) took(since time.Time, done func(*client) time.Time) (took []time.Duration, latest time.Time) {
	for _, c := range f.clients {
		c.mu.Lock()
		at := done(c)
		for _, moment := range []time.Time{at, c.latest} {
			if moment.After(latest) {
				latest = moment
			}
		}
		c.mu.Unlock()
		if !at.IsZero() {
			took = append(took, at.Sub(since))
		}
	}
	return took, latest
}

func (f *Fleet) tell(report *Report, took []time.Duration, last time.Duration) {
	slices.Sort(took)
	report.Clients = len(took)
	if len(took) > 0 {
		report.P50, report.Max, report.Last = took[len(took)/2], took[len(took)-1], last
	}
	for _, c := range f.clients {
		report.Bytes += c.bytes.Load()
		report.Responses += c.answers.Load()
	}
	report.Refused = 0
	for _, c := range f.others {
		if c.manner == refusing {
			report.Refused += c.answers.Load()
		}
	}
}
