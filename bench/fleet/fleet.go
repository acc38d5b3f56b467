// Package fleet simulates many Envoys that are clients of a control plane. It uses little CPU and memory, because it
// decodes each distinct resource only once for all clients.
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
	Address    string // plaintext xDS address of the control plane
	Proxies    int
	Namespaces int    // the proxies are distributed over ns0, ns1, …
	EnvoyMinor uint32 // minor version of Envoy 1.x that clients report; default 40
	// Slow is the number of additional clients that read almost nothing. Refusing is the number of additional clients that
	// NACK every response and request it again at once.
	Slow, Refusing int
	// Timeout is the timeout for all operations; default one minute.
	Timeout time.Duration
}

// Sign is the marker of a change: text that responses of some types contain after the change.
type Sign struct {
	Text  string
	Types []string // suffixes of type URLs, such as Cluster
}

func (s Sign) matches(typeURL string) bool {
	return slices.ContainsFunc(s.Types, func(t string) bool { return strings.HasSuffix(typeURL, "."+t) })
}

// Report contains the measurements of all clients.
type Report struct {
	Clients   int           // number of clients that completed
	P50, Max  time.Duration // time until a client completed
	Last      time.Duration // time until the last response to any client
	Bytes     int64         // number of bytes that all clients received
	Responses int64
	Refused   int64 // number of NACKs since the clients connected
}

// Fleet is a set of clients. It runs in a separate process, so that its costs are not part of the control plane's
// costs. The benchmark calls its exported methods over net/rpc.
type Fleet struct {
	decoder *decoder

	mu          sync.Mutex
	o           Options
	clients     []*client
	misbehaving []*client // slow and refusing clients, for which the fleet does not wait
	stop        context.CancelFunc
	running     sync.WaitGroup
	failed      error
}

// New returns a fleet without clients.
func New() *Fleet { return &Fleet{decoder: newDecoder(), stop: func() {}} }

// Serve serves a Fleet over net/rpc to the process at the other end of conn, until that closes the connection.
func Serve(conn io.ReadWriteCloser) error {
	server, f := rpc.NewServer(), New()
	if err := server.Register(f); err != nil {
		return err
	}
	server.ServeConn(conn)
	f.halt()
	return nil
}

// Connect replaces all clients by new ones, and waits until each has received the resources to which it subscribes.
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

// Reconnect closes all connections. It then connects the clients again. They retain the resources that they have
// received.
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

// runWithRetry runs a client. It reconnects if the control plane rejects the connection because of overload.
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

// Expect makes the clients search for a marker in all later responses.
func (f *Fleet) Expect(sign Sign, _ *Report) error {
	f.reset()
	f.decoder.mu.Lock()
	f.decoder.sign = sign
	f.decoder.mu.Unlock()
	return nil
}

// Await waits until all clients have received the marker and no further responses arrive. It reports the times since
// start, which is in nanoseconds since 1970.
func (f *Fleet) Await(start int64, report *Report) error {
	return f.await(time.Unix(0, start), 500*time.Millisecond, func(c *client) time.Time { return c.marked }, report)
}

// AwaitAny is like Await, but waits for any response instead of the marker.
func (f *Fleet) AwaitAny(start int64, report *Report) error {
	return f.await(time.Unix(0, start), 500*time.Millisecond, func(c *client) time.Time { return c.latest }, report)
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
			return fmt.Errorf("only %d of %d clients have completed after %v", len(took), len(f.clients), f.o.Timeout)
		}
		time.Sleep(20 * time.Millisecond) // does not affect the result, because the clients record the times
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
