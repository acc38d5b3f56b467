//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// withoutMetrics is a document that disables the standard metrics of the whole mesh.
const withoutMetrics = `apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: none, namespace: istio-system}
spec:
  metrics:
    - providers: [{name: prometheus}]
      overrides: [{match: {metric: ALL_METRICS}, disabled: true}]
`

// updateTimeout is the maximum time until both Envoys have applied a changed file.
const updateTimeout = 20 * time.Second

// measuredConnections are the numbers of connections of the measured loads.
var measuredConnections = []int{1, 32}

// Prefixes of the names of the standard metrics, and of the request counter.
var (
	metricPrefixes  = []string{"envoy_istio_", "istio_"}
	requestPrefixes = []string{"envoy_istio_requests_total{", "istio_requests_total{"}
)

// meteredPair is the pair of sidecars in the mesh. A configuration file enables or disables their metrics.
type meteredPair struct {
	telemetry string // path of the file that disables the metrics
	admins    []string
	pids      []int
}

// metered contains the results of the loads either with or without metrics.
type metered struct {
	side
	perRequest [][]float64 // CPU time in microseconds per request, by sidecar and round
}

// metrics measures the cost of the standard metrics. It sends the same requests through the same two sidecars, alternately
// with metrics and with a Telemetry that disables them.
func (b *bench) metrics(ctx context.Context) error {
	stop, err := b.startMesh(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // only needed for the measurement
	pair, err := b.meteredPair()
	if err != nil {
		return err
	}
	if err := pair.printSeries(ctx); err != nil {
		return err
	}
	results := make(map[bool][]*metered)
	for _, on := range []bool{false, true} {
		for range measuredConnections {
			results[on] = append(results[on], &metered{perRequest: make([][]float64, len(pair.pids))})
		}
	}
	for round := range b.rounds + 1 {
		// The order alternates, so that neither side is always measured last.
		for _, on := range []bool{round%2 == 0, round%2 != 0} {
			if err := b.meter(ctx, pair, on, results[on], round == 0); err != nil {
				return err
			}
		}
	}
	for i, connections := range measuredConnections {
		fmt.Printf("%d connections: medians of %d loads of %s, in which the settings alternate\n", connections, b.rounds, b.load)
		printMetered(results[false][i], results[true][i])
	}
	return nil
}

// meteredPair finds the Envoys of the two sidecars that startMesh has started.
func (b *bench) meteredPair() (*meteredPair, error) {
	pair := &meteredPair{telemetry: filepath.Join(b.dir, "mesh", "config", "telemetry.yaml")}
	for _, name := range []string{"client", "server"} {
		dir := filepath.Join(b.dir, "run", "bench", "workloads", name)
		pid, err := processIn(b.envoy, dir)
		if err != nil {
			return nil, err
		}
		pair.pids = append(pair.pids, pid)
		pair.admins = append(pair.admins, "http://"+dial.SocketHost(filepath.Join(dir, "etc/istio/proxy/admin/envoy.sock")))
	}
	return pair, nil
}

// processIn returns the PID of the process that runs a program in a working directory.
func processIn(program, dir string) (int, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		exe, _ := os.Readlink(p + "/exe") // fails for processes that have just exited
		cwd, _ := os.Readlink(p + "/cwd")
		if exe == program && cwd == dir {
			return strconv.Atoi(filepath.Base(p))
		}
	}
	return 0, fmt.Errorf("no process runs the program %s in the directory %s", program, dir)
}

// meter runs all loads with or without metrics. It checks that the metrics counted the requests, or did not count them.
func (b *bench) meter(ctx context.Context, pair *meteredPair, on bool, into []*metered, warmUp bool) error {
	if err := pair.set(ctx, on); err != nil {
		return err
	}
	for i, connections := range measuredConnections {
		l := load{address: meshClient + ":15080", target: "http://server:8080/", host: "server:8080", connections: connections, duration: b.load}
		if warmUp {
			l.duration /= 3 // shorter, because this is only a warm-up
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
			return fmt.Errorf("%d of %d responses did not have status 200", r.failed, r.requests)
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

// checkCounted checks that the metrics were really enabled or disabled during a load. It tolerates one request on an earlier
// connection, to which the previous setting applies.
func checkCounted(on bool, requests int, before, after []int) error {
	stray := requests / 100
	for i := range before {
		if counted := after[i] - before[i]; on && counted < requests-stray || !on && counted > stray {
			return fmt.Errorf("istio_requests_total of sidecar %d increased by %d with %d requests, metrics enabled: %t", i+1, counted, requests, on)
		}
	}
	return nil
}

// set enables or disables the metrics, and waits until both Envoys have replaced their listeners. It then sends a request
// that closes the connection between the Envoys, because the previous setting still applies to it.
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
	for deadline := time.Now().Add(updateTimeout); ; {
		inForce, err := m.waitUpdated(ctx, on)
		if err != nil {
			return err
		}
		if inForce {
			return awaitAnswer(ctx, load{address: meshClient + ":15080", target: "http://server:8080/", host: "server:8080"})
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the setting \"metrics enabled: %t\" is not in force in both Envoys after %s", on, updateTimeout)
		}
		if !backoff.Sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (m *meteredPair) waitUpdated(ctx context.Context, on bool) (bool, error) {
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

// state returns, for each Envoy, the number of requests that its metrics have counted, and its CPU time.
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

// printSeries prints the number of series in each Envoy's metrics. All requests are from one client to one service. Failed
// requests before the mesh was ready have separate series.
func (m *meteredPair) printSeries(ctx context.Context) error {
	fmt.Printf("standard metrics of one caller and one service\n")
	for i, name := range []string{"client's sidecar", "server's sidecar"} {
		text, err := fetch(ctx, m.admins[i]+"/stats/prometheus")
		if err != nil {
			return err
		}
		all, own, answers := seriesOf(text, ""), seriesOf(text, metricPrefixes...), seriesOf(text, requestPrefixes...)
		fmt.Printf("  %-20s %d lines, %d bytes, for %d kinds of responses; all statistics of this Envoy: %d lines, %d bytes\n", name,
			len(own), sizeOf(own), len(answers), len(all), sizeOf(all))
	}
	return nil
}

// seriesOf returns the lines of a Prometheus exposition that begin with one of the prefixes.
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

// fetch returns a page of an Envoy's admin interface.
func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial.LocalhostDialer(&net.Dialer{})}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s returns %s: %s", url, response.Status, body)
	}
	return body, err
}

func printMetered(off, on *metered) {
	printRow := func(what, unit string, off, on []float64) {
		lowest, highest := spread(on, off)
		fmt.Printf("  %-38s off %8.1f  on %8.1f %-3s  x%.3f (x%.3f to x%.3f)\n", what, medianOf(clone(off)), medianOf(clone(on)), unit, ratio(on, off), lowest, highest)
	}
	printRow("requests/s", "", off.rps, on.rps)
	printRow("p99", "µs", off.p99, on.p99)
	printRow("CPU per request, client's Envoy", "µs", off.perRequest[0], on.perRequest[0])
	printRow("CPU per request, server's Envoy", "µs", off.perRequest[1], on.perRequest[1])
	printRow("CPU per request, both", "µs", sums(off.perRequest), sums(on.perRequest))
}

// spread returns the minimum and the maximum of the ratios a[i]/b[i], one for each round.
func spread(a, b []float64) (lowest, highest float64) {
	for i := range a {
		r := a[i] / b[i]
		if i == 0 {
			lowest, highest = r, r
		}
		lowest, highest = min(lowest, r), max(highest, r)
	}
	return lowest, highest
}

// sums returns, for each round, the sum of the values of the two sidecars.
func sums(of [][]float64) []float64 {
	out := make([]float64, len(of[0]))
	for _, rounds := range of {
		for i, v := range rounds {
			out[i] += v
		}
	}
	return out
}
