// Package fleet simulates many Envoys as clients of a control plane at low cost. It decodes each distinct resource only
// once for all clients.
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

// Options configure the clients.
type Options struct {
	Address    string // of the control plane, plaintext
	Proxies    int
	Namespaces int    // the proxies are distributed over ns0, ns1, …
	EnvoyMinor uint32 // of Envoy 1.x; default 40
	// Slow and Refusing are numbers of additional clients: those that read almost nothing, and those that NACK every
	// response and request it again at once.
	Slow, Refusing int
	// Timeout is the timeout for all operations; default one minute.
	Timeout time.Duration
}

// Sign is the marker of a change: a text in responses of some types.
type Sign struct {
	Text  string
	Types []string // suffixes of type URLs, such as Cluster
}

func (s Sign) matches(typeURL string) bool {
	return slices.ContainsFunc(s.Types, func(t string) bool { return strings.HasSuffix(typeURL, "."+t) })
}

// Report contains the clients' measurements.
type Report struct {
	Clients   int           // clients that completed
	P50, Max  time.Duration // until a client completed
	Last      time.Duration // until the last response of any client
	Bytes     int64         // received by all clients
	Responses int64
	Refused   int64 // NACKs since the clients connected
}

// Fleet is a set of clients. Its methods are for net/rpc: it runs in its own process, so that the control plane's costs
// can be separated from the clients'.
type Fleet struct {
	decoder *decoder

	mu          sync.Mutex
	o           Options
	clients     []*client
	misbehaving []*client // misbehaving clients, which are not waited for
	stop        context.CancelFunc
	running     sync.WaitGroup
	failed      error
}

// New returns a fleet without clients.
func New() *Fleet { return &Fleet{decoder: newDecoder(), stop: func() {}} }

// Serve serves another process until it closes the connection.
func Serve(conn io.ReadWriteCloser) error {
	server, f := rpc.NewServer(), New()
	if err := server.Register(f); err != nil {
		return err
	}
	server.ServeConn(conn)
	f.halt()
	return nil
}

// Connect replaces all clients by new ones, and waits until they have received their subscriptions.
func (f *Fleet) Connect(o Options, report *Report) error {
	if o.EnvoyMinor == 0 {
		o.EnvoyMinor = 40
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
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
	if f.misbehaving, err = f.newMisbehaving(o); err != nil {
		return err
	}
	return f.connect(report)
}

// Reconnect closes all connections, and connects the clients again with their state.
func (f *Fleet) Reconnect(_ struct{}, report *Report) error {
	f.halt()
	return f.connect(report)
}

// Disconnect disconnects all clients.
func (f *Fleet) Disconnect(_ struct{}, _ *Report) error {
	f.halt()
	f.clients, f.misbehaving = nil, nil
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
	for _, c := range slices.Concat(f.clients, f.misbehaving) {
		f.running.Go(func() { f.runWithRetry(ctx, c) })
	}
	return f.await(began, time.Second, func(c *client) time.Time { return c.settled }, report)
}

// runWithRetry reconnects when the control plane rejects a connection because of overload.
func (f *Fleet) runWithRetry(ctx context.Context, c *client) {
	for ctx.Err() == nil {
		err := c.run(ctx, f.o.Address)
		if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Unavailable || c.behaviour != asEnvoys {
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

// Expect starts to look for a marker.
func (f *Fleet) Expect(sign Sign, _ *Report) error {
	f.reset()
	f.decoder.mu.Lock()
	f.decoder.sign = sign
	f.decoder.mu.Unlock()
	return nil
}

// Await waits until all clients have received the marker and no response was received for a while. It reports the times
// since a moment, in nanoseconds since 1970.
func (f *Fleet) Await(since int64, report *Report) error {
	return f.await(time.Unix(0, since), 500*time.Millisecond, func(c *client) time.Time { return c.marked }, report)
}

// AwaitAny is like Await, for any response.
func (f *Fleet) AwaitAny(since int64, report *Report) error {
	return f.await(time.Unix(0, since), 500*time.Millisecond, func(c *client) time.Time { return c.latest }, report)
}

func (f *Fleet) await(since time.Time, quiet time.Duration, done func(*client) time.Time, report *Report) error {
	deadline := time.Now().Add(f.o.Timeout)
	for {
		took, latest := f.latencies(since, done)
		f.mu.Lock()
		err := f.failed
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if len(took) == len(f.clients) && time.Since(latest) > quiet {
			f.report(report, took, latest.Sub(since))
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d clients of %d are done after %v", len(took), len(f.clients), f.o.Timeout)
		}
		time.Sleep(20 * time.Millisecond) // the clients record the times
	}
}

func (f *Fleet) latencies(since time.Time, done func(*client) time.Time) (took []time.Duration, latest time.Time) {
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

func (f *Fleet) report(report *Report, took []time.Duration, last time.Duration) {
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
	for _, c := range f.misbehaving {
		if c.behaviour == refusing {
			report.Refused += c.answers.Load()
		}
	}
}
