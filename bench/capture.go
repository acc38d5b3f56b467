//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// meshWay is one way in which a local mesh delivers an application's traffic to its sidecar.
type meshWay struct {
	flag    string
	address string // address to which the application connects
	target  string
	side    side
	started []float64 // seconds until `up` reports that all workloads are ready
}

// capture compares a local mesh with redirected traffic and one with HTTP proxies: the start-up time, and the latency
// of a request through two sidecars. It needs root.
func (b *bench) capture(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root can create network namespaces: run `bench -only capture` as root")
	}
	ways := []*meshWay{
		{flag: "--no-capture", address: meshClient + ":15080", target: "http://server:8080/", side: side{name: "by a proxy setting"}},
		{flag: "--capture", address: "server:8080", target: "/", side: side{name: "captured"}},
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "captured")
	if err := unpack("mesh", dir, "${BENCH}", self); err != nil {
		return err
	}
	defer func() { // after a failure, a mesh may still be running
		for _, w := range ways {
			_ = b.down(context.WithoutCancel(ctx), w)
		}
	}()
	for round := range b.rounds + 1 {
		for _, w := range ways {
			if err := b.timeStart(ctx, w, dir, round); err != nil {
				return err
			}
		}
	}
	fmt.Printf("time until two workloads are ready, medians of %d alternating starts\n", b.rounds)
	for _, w := range ways {
		fmt.Printf("  %-20s %6.2f s   x%.2f\n", w.side.name, medianOf(clone(w.started)), ratio(w.started, ways[0].started))
	}
	for _, connections := range []int{1, 32} {
		if err := b.compareWays(ctx, ways, connections); err != nil {
			return err
		}
	}
	return nil
}

// timeStart measures the start of a mesh, and stops the mesh again. In the last round, the mesh continues to run.
func (b *bench) timeStart(ctx context.Context, w *meshWay, dir string, round int) error {
	start := time.Now()
	up := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish"), "up", "-f", filepath.Join(dir, "mesh.yaml"), w.flag, "--detach",
		"--envoy-path", b.envoy, "--runtime-dir", b.runtimeOf(w))
	if out, err := up.CombinedOutput(); err != nil {
		return fmt.Errorf("pilotfish up %s: %w: %s", w.flag, err, out)
	}
	if round > 0 { // the first round is a warm-up
		w.started = append(w.started, time.Since(start).Seconds())
	}
	if round == b.rounds {
		return nil
	}
	return b.down(ctx, w)
}

func (b *bench) runtimeOf(w *meshWay) string { return filepath.Join(b.dir, "run"+w.flag) }

func (b *bench) down(ctx context.Context, w *meshWay) error {
	out, err := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish"), "down", "--runtime-dir", b.runtimeOf(w)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pilotfish down: %w: %s", err, out)
	}
	return nil
}

func (b *bench) compareWays(ctx context.Context, ways []*meshWay, connections int) error {
	for _, w := range ways {
		w.side.rps, w.side.p50, w.side.p99 = nil, nil, nil
	}
	for round := range b.rounds + 1 {
		for _, w := range ways {
			r, err := b.loadAs(ctx, w, connections)
			if err != nil {
				return fmt.Errorf("%s: %w", w.side.name, err)
			}
			if round > 0 {
				w.side.rps = append(w.side.rps, r.PerSecond)
				w.side.p50, w.side.p99 = append(w.side.p50, r.P50), append(w.side.p99, r.P99)
			}
		}
	}
	fmt.Printf("%d connections: medians of %d loads of %s, in which the ways alternate; ratios to the first line: requests/s, p50, p99\n", connections, b.rounds, b.load)
	for _, w := range ways {
		s := w.side
		fmt.Printf("  %-20s %10.0f requests/s  p50 %6.0f µs  p99 %6.0f µs   x%.2f  x%.2f  x%.2f\n", s.name, medianOf(clone(s.rps)), medianOf(clone(s.p50)),
			medianOf(clone(s.p99)), ratio(s.rps, ways[0].side.rps), ratio(s.p50, ways[0].side.p50), ratio(s.p99, ways[0].side.p99))
	}
	return nil
}

// loadResult is the result of a load in JSON, which a child process prints. Times are in microseconds.
type loadResult struct {
	PerSecond, P50, P99 float64
	Requests, Failed    int
}

// loadAs generates the load as the application of the workload client, in a child process.
func (b *bench) loadAs(ctx context.Context, w *meshWay, connections int) (loadResult, error) {
	self, err := os.Executable()
	if err != nil {
		return loadResult{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish"), "exec", "--runtime-dir", b.runtimeOf(w), "client", "--", self,
		"-load", b.load.String(), "-load-at", w.address, "-load-target", w.target, "-connections", strconv.Itoa(connections))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return loadResult{}, err
	}
	var r loadResult
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("parsing the result of the load %q: %w", out, err)
	}
	if r.Failed > 0 {
		return r, fmt.Errorf("%d of %d requests were not answered with 200", r.Failed, r.Requests)
	}
	return r, nil
}

// loadFor generates a load and prints its result as JSON, for loadAs in the parent process.
func (b *bench) loadFor(ctx context.Context, l load) error {
	l.host, l.duration = "server:8080", b.load
	if err := awaitAnswer(ctx, l); err != nil {
		return err
	}
	r, err := l.run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(loadResult{
		PerSecond: r.perSecond(), P50: float64(r.p50.Microseconds()), P99: float64(r.p99.Microseconds()),
		Requests: r.requests, Failed: r.failed,
	})
}
