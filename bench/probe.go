//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	probePath    = "/app-health/server/readyz"
	probesAfter  = 500 // number of probes per round and side
	stormTime    = 10 * time.Second
	stormClients = 32
)

// probe compares the latency of probes through the agent with the latency of direct probes of the application. It also
// measures the agent's memory while it handles as many probes as possible.
func (b *bench) probe(ctx context.Context) error {
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	application := appAddress + ":8080"
	stopApp, err := start(b.dir, os.Environ(), filepath.Join("/proc", fmt.Sprint(os.Getpid()), "exe"), "-serve", application)
	if err != nil {
		return err
	}
	defer func() { _ = stopApp() }()
	if _, err := awaitOK(ctx, "http://"+application); err != nil {
		return err
	}
	agent, err := b.launchAgent(ctx, `ISTIO_KUBE_APP_PROBERS={"`+probePath+`":{"httpGet":{"path":"/","port":8080},"timeoutSeconds":5}}`)
	if err != nil {
		return err
	}
	defer agent.quit()
	through := proxyAddress + ":15020"
	if err := b.compareProbes(ctx, application, through); err != nil {
		return err
	}
	if err := probeStorms(ctx, agent.cmd.Process.Pid, through); err != nil {
		text, _ := os.ReadFile(filepath.Join(b.dir, "agent.log"))
		return fmt.Errorf("%w\nthe agent's output:\n%s", err, text)
	}
	return nil
}

func (b *bench) compareProbes(ctx context.Context, application, through string) error {
	var direct, proxied, ratios []float64
	for range b.rounds {
		d, err := probeTimes(ctx, application, "/", probesAfter)
		if err != nil {
			return err
		}
		p, err := probeTimes(ctx, through, probePath, probesAfter)
		if err != nil {
			return err
		}
		direct, proxied = append(direct, d), append(proxied, p)
		ratios = append(ratios, p/d)
	}
	fmt.Printf("an HTTP probe on a new connection, medians of %d rounds of %d probes\n", b.rounds, probesAfter)
	fmt.Printf("  of the application itself                       %6.0f us\n", medianOf(direct))
	fmt.Printf("  through the agent                               %6.0f us   x%.2f, +%.0f us\n", medianOf(proxied), medianOf(ratios), medianOf(proxied)-medianOf(direct))
	return nil
}

// probeTimes returns the median duration of a probe in microseconds.
func probeTimes(ctx context.Context, address, path string, count int) (float64, error) {
	took := make([]float64, 0, count)
	for range count {
		began := time.Now()
		if err := probeOnce(ctx, address, path); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began).Microseconds()))
	}
	return medianOf(took), nil
}

// probeOnce sends a probe on a new connection, as a kubelet does.
func probeOnce(ctx context.Context, address, path string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.34\r\nAccept: */*\r\nConnection: close\r\n\r\n", path, address); err != nil {
		return err
	}
	answer := make([]byte, 4<<10)
	var n int
	for n < len(answer) { // until the server closes the connection, so that the server's side has the TIME_WAIT state
		more, err := conn.Read(answer[n:])
		n += more
		if err != nil {
			break
		}
	}
	if want := "HTTP/1.1 200"; n < len(want) || string(answer[:len(want)]) != want {
		return fmt.Errorf("%s%s responded with %.80q, want status %d", address, path, answer[:n], http.StatusOK)
	}
	return nil
}

// probeStorms sends probes as fast as possible for some time, and then again. The second storm shows whether the agent
// reuses the memory of the first one.
func probeStorms(ctx context.Context, pid int, through string) error {
	fmt.Printf("storms of probes: %d concurrent clients for %v\n", stormClients, stormTime)
	if !backoff.Sleep(ctx, settleTime) { // wait until the agent has released unused memory
		return ctx.Err()
	}
	if err := weigh("before", pid); err != nil {
		return err
	}
	for _, which := range []string{"first", "second"} {
		made, err := probeStorm(ctx, through)
		if err != nil {
			return err
		}
		fmt.Printf("  probes a second, none of which failed           %6.0f\n", float64(made)/stormTime.Seconds())
		if err := weigh("at the end of the "+which, pid); err != nil {
			return err
		}
	}
	if !backoff.Sleep(ctx, settleTime) {
		return ctx.Err()
	}
	return weigh("10 s later", pid)
}

// probeStorm sends probes for stormTime and returns their number. It fails at the first failed probe.
func probeStorm(ctx context.Context, through string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, stormTime)
	defer cancel()
	var made atomic.Int64
	errs := make([]error, stormClients)
	var all sync.WaitGroup
	for i := range stormClients {
		all.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				if errs[i] = probeOnce(context.WithoutCancel(ctx), through, probePath); errs[i] == nil {
					made.Add(1)
				}
			}
		})
	}
	all.Wait()
	return made.Load(), errors.Join(errs...)
}
