//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// withoutMetrics disables the mesh's standard metrics in all of it.
const withoutMetrics = `apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: none, namespace: istio-system}
spec:
  metrics:
    - providers: [{name: prometheus}]
      overrides: [{match: {metric: ALL_METRICS}, disabled: true}]
`

// inForceTime is how long both Envoys may take to have what a changed file says.
const inForceTime = 20 * time.Second

// measuredConnections are the loads that are made with and without metrics.
var measuredConnections = []int{1, 32}

// What the standard metrics' names begin with, and those of the one that counts requests.
var (
	metricPrefixes  = []string{"envoy_istio_", "istio_"}
	requestPrefixes = []string{"envoy_istio_requests_total{", "istio_requests_total{"}
)

// meteredPair is the two sidecars of the mesh, whose Envoys make the metrics or not, as a file says.
type meteredPair struct {
	telemetry string // the file that disables them
	admins    []string
	pids      []int
}

// metered is what came of the loads with metrics, or of those without.
type metered struct {
	side
	perRequest [][]float64 // microseconds of processor time a request, by sidecar and round
}

// metrics measures what the standard metrics cost: the same requests through the same two sidecars with them and with a
// Telemetry that disables them, in turn.
func (b *bench) metrics(ctx context.Context) error {
	stop, err := b.startMesh(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // it only served the measurement
	pair, err := b.meteredPair()
	if err != nil {
		return err
	}
	if err := pair.tellSeries(ctx); err != nil {
		return err
	}
	results := make(map[bool][]*metered)
	for _, on := range []bool{false, true} {
		for range measuredConnections {
			results[on] = append(results[on], &metered{perRequest: make([][]float64, len(pair.pids))})
		}
	}
	for round := range b.rounds + 1 {
		// The order changes with every round, so that neither has always the later time.
		for _, on := range []bool{round%2 == 0, round%2 != 0} {
			if err := b.meter(ctx, pair, on, results[on], round == 0); err != nil {
				return err
			}
		}
	}
	for i, connections := range measuredConnections {
		fmt.Printf("%d connections, medians of %d loads of %s in turn\n", connections, b.rounds, b.load)
		tellMetered(results[false][i], results[true][i])
	}
	return nil
}

// meteredPair finds the Envoys of the mesh that startMesh has started.
func (b *bench) meteredPair() (*meteredPair, error) {
	pair := &meteredPair{
		telemetry: filepath.Join(b.dir, "mesh", "config", "telemetry.yaml"),
		admins:    []string{"http://" + meshClient + ":15000", "http://" + meshServer + ":15000"},
	}
	for _, name := range []string{"client", "server"} {
		pid, err := processIn(b.envoy, filepath.Join(b.dir, "run", "bench", "workloads", name))
		if err != nil {
			return nil, err
		}
		pair.pids = append(pair.pids, pid)
	}
	return pair, nil
}

// processIn is the process of a program in a working directory.
func processIn(program, dir string) (int, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		exe, _ := os.Readlink(p + "/exe") // one that ends is none of ours
		cwd, _ := os.Readlink(p + "/cwd")
		if exe == program && cwd == dir {
			return strconv.Atoi(filepath.Base(p))
		}
	}
	return 0, fmt.Errorf("no process of %s is in %s", program, dir)
}

// meter makes all loads with or without metrics, and checks that they were counted, or were not.
func (b *bench) meter(ctx context.Context, pair *meteredPair, on bool, into []*metered, warmUp bool) error {
	if err := pair.set(ctx, on); err != nil {
		return err
	}
	for i, connections := range measuredConnections {
		l := load{address: meshClient + ":15080", target: "http://server:8080/", host: "server:8080", connections: connections, duration: b.load}
		if warmUp {
			l.duration /= 3 // warms up, and is not counted
		}
		counted, spent, err := pair.state(ctx)
		if err != nil {
			return err
		}
		r, err := l.run(ctx)
		if err != nil {
			return err
		}
		if r.failed > 0 {
			return fmt.Errorf("%d of %d requests were not answered with 200", r.failed, r.requests)
		}
		countedAfter, spentAfter, err := pair.state(ctx)
		if err != nil {
			return err
		}
		if err := checkCounted(on, r.requests, counted, countedAfter); err != nil {
			return err
		}
		if warmUp {
			continue
		}
		into[i].rps, into[i].p99 = append(into[i].rps, r.perSecond()), append(into[i].p99, float64(r.p99.Microseconds()))
		for p := range spent {
			into[i].perRequest[p] = append(into[i].perRequest[p], float64((spentAfter[p]-spent[p]).Nanoseconds())/1000/float64(r.requests))
		}
	}
	return nil
}

// checkCounted makes sure that what is measured is what it is said to be. A connection from before may carry a last
// request in the way of before.
func checkCounted(on bool, requests int, before, after []int) error {
	stray := requests / 100
	for i := range before {
		if counted := after[i] - before[i]; on && counted < requests-stray || !on && counted > stray {
			return fmt.Errorf("istio_requests_total of sidecar %d went up by %d with %d requests, metrics on: %t", i+1, counted, requests, on)
		}
	}
	return nil
}

// set turns the metrics on or off, waits until both Envoys have nothing of the listeners before, and has a request end the
// connection between them, which is still served as it was.
func (m *meteredPair) set(ctx context.Context, on bool) error {
	var err error
	if on {
		err = os.Remove(m.telemetry)
	} else {
		err = os.WriteFile(m.telemetry, []byte(withoutMetrics), 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for deadline := time.Now().Add(inForceTime); ; {
		inForce, err := m.inForce(ctx, on)
		if err != nil {
			return err
		}
		if inForce {
			return awaitAnswer(ctx, load{address: meshClient + ":15080", target: "http://server:8080/", host: "server:8080"})
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("metrics on: %t is not in force in both Envoys after %s", on, inForceTime)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (m *meteredPair) inForce(ctx context.Context, on bool) (bool, error) {
	for _, admin := range m.admins {
		dump, err := fetch(ctx, admin+"/config_dump?resource=dynamic_listeners")
		if err != nil {
			return false, err
		}
		if bytes.Contains(dump, []byte("envoy.access_loggers.stats")) != on || bytes.Contains(dump, []byte("draining_state")) {
			return false, nil
		}
	}
	return true, nil
}

// state is how many requests each Envoy's metrics have counted, and the processor time that it has spent.
func (m *meteredPair) state(ctx context.Context) (counted []int, spent []time.Duration, err error) {
	for i, admin := range m.admins {
		text, err := fetch(ctx, admin+"/stats/prometheus?filter=requests_total")
		if err != nil {
			return nil, nil, err
		}
		sum := 0
		for _, line := range seriesOf(text, requestPrefixes...) {
			n, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", line, err)
			}
			sum += n
		}
		cpu, err := cpuTime(m.pids[i])
		if err != nil {
			return nil, nil, err
		}
		counted, spent = append(counted, sum), append(spent, cpu)
	}
	return counted, spent, nil
}

// tellSeries counts what each Envoy has for its requests so far, which were all of one caller to one service: those before
// the mesh was ready were answered otherwise than those after.
func (m *meteredPair) tellSeries(ctx context.Context) error {
	fmt.Printf("standard metrics of one caller and one service\n")
	for i, name := range []string{"client's sidecar", "server's sidecar"} {
		text, err := fetch(ctx, m.admins[i]+"/stats/prometheus")
		if err != nil {
			return err
		}
		all, own, answers := seriesOf(text, ""), seriesOf(text, metricPrefixes...), seriesOf(text, requestPrefixes...)
		fmt.Printf("  %-20s %d lines, %d bytes, for %d kinds of answers; with all else that Envoy counts %d lines, %d bytes\n", name,
			len(own), sizeOf(own), len(answers), len(all), sizeOf(all))
	}
	return nil
}

// seriesOf are the samples of an exposition whose names begin with one of the prefixes.
func seriesOf(text []byte, prefixes ...string) (found []string) {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		begins := func(prefix string) bool { return strings.HasPrefix(line, prefix) }
		if line != "" && line[0] != '#' && slices.ContainsFunc(prefixes, begins) {
			found = append(found, line)
		}
	}
	return found
}

func sizeOf(lines []string) (n int) {
	for _, l := range lines {
		n += len(l) + 1
	}
	return n
}

// fetch gets a page of an Envoy's admin.
func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s: %s", url, response.Status, body)
	}
	return body, err
}

func tellMetered(off, on *metered) {
	tell := func(what, unit string, off, on []float64) {
		least, most := spread(on, off)
		fmt.Printf("  %-38s off %8.1f  on %8.1f %-3s  x%.3f (x%.3f to x%.3f)\n", what, medianOf(clone(off)), medianOf(clone(on)), unit, ratio(on, off), least, most)
	}
	tell("requests/s", "", off.rps, on.rps)
	tell("p99", "µs", off.p99, on.p99)
	tell("CPU of the client's Envoy a request", "µs", off.perRequest[0], on.perRequest[0])
	tell("CPU of the server's Envoy a request", "µs", off.perRequest[1], on.perRequest[1])
	tell("CPU of both a request", "µs", sums(off.perRequest), sums(on.perRequest))
}

// spread is the least and the greatest of the ratios of what was measured in the same round.
func spread(a, b []float64) (least, most float64) {
	for i := range a {
		r := a[i] / b[i]
		if i == 0 {
			least, most = r, r
		}
		least, most = min(least, r), max(most, r)
	}
	return least, most
}

// sums adds up what two sidecars spent in each round.
func sums(of [][]float64) []float64 {
	out := make([]float64, len(of[0]))
	for _, rounds := range of {
		for i, v := range rounds {
			out[i] += v
		}
	}
	return out
}
