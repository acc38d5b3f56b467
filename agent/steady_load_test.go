package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// steadyWarmUp is the duration of a steady load before SIGTERM.
	steadyWarmUp = 3 * time.Second
	// maxSteadyRate limits the requests per second of all loads that run at the same time, and ratePerWorker those of
	// one client.
	maxSteadyRate = 6500
	ratePerWorker = 50
)

// steadyCase is an agent whose callers send at a steady rate, and are notified some time after its SIGTERM that the
// endpoint is removed.
type steadyCase struct {
	protocol string
	rate     int // requests per second
	removal  time.Duration
	agent    *agentProcess
	// served counts the requests until SIGTERM and after it.
	before, after atomic.Int64
}

func (c *steadyCase) String() string {
	return fmt.Sprintf("%s, %d/s, removed after %v", c.protocol, c.rate, c.removal)
}

// newSender returns a function that sends one request, and one that closes the connections.
func (c *steadyCase) newSender() (send func() error, end func()) {
	transport := &http.Transport{}
	switch c.protocol {
	case "TCP":
		return func() error { return echoOnce(c.agent.address + ":9000") }, func() {}
	case "HTTP/2":
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client := &http.Client{Transport: transport, Timeout: testTimeout}
	return func() error { return postOnce(client, "http://"+c.agent.address+":8080/") }, transport.CloseIdleConnections
}

// echoOnce sends bytes on a new connection and reads them back.
func echoOnce(address string) error {
	conn, err := net.DialTimeout("tcp", address, testTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	var answer [4]byte
	if _, err = conn.Write([]byte("ping")); err == nil {
		_, err = io.ReadFull(conn, answer[:])
	}
	if err == nil && string(answer[:]) != "ping" {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}

// sendSteadily sends one request per interval until ctx ends, and returns the failures. It skips what it is late for.
func (c *steadyCase) sendSteadily(ctx context.Context, interval time.Duration, served func() *atomic.Int64) error {
	send, end := c.newSender()
	defer end()
	due := time.NewTicker(interval)
	defer due.Stop()
	var failures []error
	for {
		select {
		case <-ctx.Done():
			return errors.Join(failures...)
		case <-due.C:
		}
		if count := served(); ctx.Err() != nil {
			continue
		} else if err := send(); err != nil {
			failures = append(failures, err)
		} else {
			count.Add(1)
		}
	}
}

// run sends the load, stops the agent, and ends the load when the endpoint is removed.
func (c *steadyCase) run(t *testing.T) {
	ctx, remove := context.WithCancel(t.Context())
	defer remove()
	var stopped atomic.Bool
	served := func() *atomic.Int64 {
		if stopped.Load() {
			return &c.after
		}
		return &c.before
	}
	var senders sync.WaitGroup
	workers := max(1, c.rate/ratePerWorker)
	for range workers {
		senders.Go(func() {
			if err := c.sendSteadily(ctx, time.Duration(workers)*time.Second/time.Duration(c.rate), served); err != nil {
				t.Errorf("%v: %v", c, err)
			}
		})
	}
	backoff.Sleep(ctx, steadyWarmUp)
	stopped.Store(true)
	signaled := time.Now()
	if err := c.agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("%v: %v", c, err)
	}
	backoff.Sleep(ctx, c.removal)
	remove()
	senders.Wait()
	select {
	case <-c.agent.done:
	case <-time.After(2 * testTimeout):
		t.Errorf("%v: the agent did not exit", c)
		return
	}
	if code := c.agent.cmd.ProcessState.ExitCode(); code != 0 || c.before.Load() == 0 {
		t.Errorf("%v: exit code %d, %d requests before SIGTERM", c, code, c.before.Load())
	}
	t.Logf("%v: %d requests before SIGTERM, %d after it, exit after %v", c, c.before.Load(), c.after.Load(), time.Since(signaled).Round(10*time.Millisecond))
}

func newSteadySetup(t *testing.T, address, drain string, env ...string) *agentProcess {
	t.Helper()
	s := newSetup(t, address)
	s.serveTraffic(t)
	s.env = append(append(s.env, s.drainFor(drain)), env...)
	s.cp.start(t)
	return s.start(t)
}

// TestSteadyLoadLosesNoRequestAtShutdown stops proxies outside Kubernetes while callers send short requests: most of the
// time, none is active. Callers that send once per second are noticed too.
func TestSteadyLoadLosesNoRequestAtShutdown(t *testing.T) {
	t.Parallel()
	idle := newSteadySetup(t, "127.180.0.1", "600s", "DRAIN_QUIET_PERIOD=500s")
	var cases []*steadyCase
	for _, rate := range []int{1, 20, 200, 2000} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2", "TCP"} {
			for _, removal := range []time.Duration{0, 300 * time.Millisecond, time.Second, 3 * time.Second} {
				address := fmt.Sprintf("127.180.1.%d", len(cases)+1)
				cases = append(cases, &steadyCase{protocol: protocol, rate: rate, removal: removal, agent: newSteadySetup(t, address, "5s")})
			}
		}
	}
	idle.waitReady()
	if err := echoOnce(idle.address + ":9000"); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	capacity := semaphore.NewWeighted(maxSteadyRate)
	for _, c := range cases {
		c.agent.waitReady()
		if err := capacity.Acquire(t.Context(), int64(c.rate)); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer capacity.Release(int64(c.rate))
			c.run(t)
		})
	}
	running.Wait()
	idle.signal(syscall.SIGTERM) // its last client was served more than two count intervals ago
	idle.checkExit(0, "no request and no connection is left")
}
