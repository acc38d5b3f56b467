//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"embed"
)

// Loopback addresses of the processes. The topology file sets the mesh's network. The two manually configured Envoys have
// another network.
const (
	meshClient = "127.71.1.1"
	meshServer = "127.71.2.1"
	meshApp    = "127.71.2.2"
	handClient = "127.72.1.1"
	handServer = "127.72.2.1"
)

//go:embed hand istio mesh
var files embed.FS

// side contains the results of one of the compared ways to send requests.
type side struct {
	name    string
	address string
	target  string
	host    string // empty: serverHost
	pids    []int  // the Envoys on the way
	rps     []float64
	p50     []float64 // microseconds
	p99     []float64
	cpu     []float64 // microseconds of CPU time of all Envoys per request
}

// serverHost is the Host header of the requests through the mesh.
const serverHost = "server:8080"

// pathConnections are the numbers of connections of the measured loads.
var pathConnections = []int{1, 32, 128}

// path compares requests through two sidecars with direct requests, with requests through two manually configured Envoys
// with the same filters, and, if the path of istiod is set, with requests through two sidecars that istiod configures. It
// measures them alternately, with the same application program.
func (b *bench) path(ctx context.Context) error {
	stopMesh, err := b.startMesh(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stopMesh() }() // only needed for the measurement
	pair, err := b.meteredPair()
	if err != nil {
		return err
	}
	hand, stopHand, err := b.startHand(ctx)
	if err != nil {
		return err
	}
	defer stopHand()
	sides := []*side{
		{name: "direct", address: meshApp + ":8080", target: "/"},
		{name: "two manual Envoys", address: handClient + ":15080", target: "http://server:8080/", pids: hand},
	}
	if b.istiod != "" {
		istio, stopIstio, err := b.startIstioPair(ctx)
		if err != nil {
			return fmt.Errorf("starting the sidecars of istiod: %w", err)
		}
		defer stopIstio()
		sides = append(sides, istio)
	}
	sides = append(sides, &side{name: "two sidecars", address: meshClient + ":15080", target: "http://server:8080/", pids: pair.pids})
	for _, connections := range pathConnections {
		if err := b.compare(ctx, sides, connections); err != nil {
			return err
		}
	}
	return nil
}

// compare measures the sides in turn. Every second round measures them in reverse order, so that no side always follows
// the same one.
func (b *bench) compare(ctx context.Context, sides []*side, connections int) error {
	for _, s := range sides {
		s.rps, s.p50, s.p99, s.cpu = nil, nil, nil, nil
	}
	ordered := slices.Clone(sides)
	for round := range b.rounds + 1 {
		for _, s := range ordered {
			if err := b.loadSide(ctx, s, connections, round == 0); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		slices.Reverse(ordered)
	}
	printSides(fmt.Sprintf("%d connections: medians of %d loads of %s, in which the sides alternate", connections, b.rounds, b.load), sides)
	return nil
}

// loadSide sends one load through a side. A warm-up is shorter and has no result.
func (b *bench) loadSide(ctx context.Context, s *side, connections int, warmUp bool) error {
	l := load{address: s.address, target: s.target, host: cmp.Or(s.host, serverHost), connections: connections, duration: b.load}
	if warmUp {
		l.duration /= 3
	}
	before, err := cpuTimes(s.pids)
	if err != nil {
		return err
	}
	r, err := l.run(ctx)
	if err != nil {
		return err
	}
	after, err := cpuTimes(s.pids)
	if err != nil {
		return err
	}
	if r.failed > 0 {
		return fmt.Errorf("%d of %d responses did not have status 200", r.failed, r.requests)
	}
	if !warmUp {
		s.rps = append(s.rps, r.perSecond())
		s.p50 = append(s.p50, float64(r.p50.Microseconds()))
		s.p99 = append(s.p99, float64(r.p99.Microseconds()))
		s.cpu = append(s.cpu, float64((after-before).Nanoseconds())/1000/float64(r.requests))
	}
	return nil
}

// cpuTimes returns the sum of the CPU times of the processes.
func cpuTimes(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		spent, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// printSides prints the medians of each side, and the ratios of the last side to it.
func printSides(title string, sides []*side) {
	ours := sides[len(sides)-1]
	fmt.Printf("%s\n  %-20s %10s %9s %9s %9s   ratios of %s, round by round: requests/s, p99, CPU\n", title, "", "requests/s", "p50", "p99", "CPU", ours.name)
	for _, s := range sides {
		fmt.Printf("  %-20s %10.0f %6.0f µs %6.0f µs", s.name, medianOf(clone(s.rps)), medianOf(clone(s.p50)), medianOf(clone(s.p99)))
		if len(s.pids) == 0 {
			fmt.Printf(" %12s   x%.2f  x%.2f\n", "", ratio(ours.rps, s.rps), ratio(ours.p99, s.p99))
			continue
		}
		fmt.Printf(" %6.1f µs   x%.2f  x%.2f  x%.2f\n", medianOf(clone(s.cpu)), ratio(ours.rps, s.rps), ratio(ours.p99, s.p99), ratio(ours.cpu, s.cpu))
	}
}

func clone(v []float64) []float64 { return append([]float64(nil), v...) }

// ratio returns the median of the ratios a[i]/b[i], one for each round.
func ratio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return medianOf(ratios)
}

// unpack writes the embedded files in source to dir. values are pairs of a placeholder and its replacement.
func unpack(source, dir string, values ...string) error {
	replace := strings.NewReplacer(values...)
	return fs.WalkDir(files, source, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(dir, strings.TrimPrefix(path, source))
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, []byte(replace.Replace(string(text))), 0o600)
	})
}

func (b *bench) startMesh(ctx context.Context) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "mesh")
	if err := unpack("mesh", dir, "${BENCH}", self); err != nil {
		return nil, err
	}
	stop, err = start(dir, os.Environ(), filepath.Join(b.bin, "pilotfish"), "up", "-f", "mesh.yaml", "--no-capture",
		"--envoy-path", b.envoy, "--runtime-dir", filepath.Join(b.dir, "run"))
	if err != nil {
		return nil, err
	}
	for _, address := range []string{meshClient, meshServer} {
		if _, err := awaitOK(ctx, "http://"+address+":15020/healthz/ready"); err != nil {
			return nil, fmt.Errorf("mesh: %w: %w", err, stop())
		}
	}
	return stop, awaitAnswer(ctx, load{address: meshClient + ":15080", target: "http://server:8080/", host: "server:8080"})
}

// startHand starts the two manually configured Envoys and returns their PIDs.
func (b *bench) startHand(ctx context.Context) (pids []int, stop func(), err error) {
	dir := filepath.Join(b.dir, "hand")
	var stops []func() error
	stop = func() {
		for _, s := range stops {
			_ = s() // only needed for the measurement
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	for _, p := range []struct{ name, address, peer string }{
		{"client", handClient, handServer}, {"server", handServer, meshApp},
	} {
		own := filepath.Join(dir, p.name)
		if err := unpack("hand", own, "${ADDRESS}", p.address, "${PEER}", p.peer, "${CERTIFICATES}", dir); err != nil {
			return nil, stop, err
		}
		if len(stops) == 0 {
			if err := writeCertificates(dir, "client", "server"); err != nil {
				return nil, stop, err
			}
		}
		// One worker thread, as in the sidecars of the local mesh.
		s, err := start(own, os.Environ(), b.envoy, "-c", p.name+".yaml", "--disable-hot-restart", "-l", "warning", "--concurrency", "1")
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, s)
		if _, err := awaitOK(ctx, "http://"+p.address+":15000/ready"); err != nil {
			return nil, stop, fmt.Errorf("waiting until the manual Envoy %s is ready: %w", p.name, err)
		}
		pid, err := processIn(b.envoy, own)
		if err != nil {
			return nil, stop, err
		}
		pids = append(pids, pid)
	}
	return pids, stop, awaitAnswer(ctx, load{address: handClient + ":15080", target: "http://server:8080/", host: serverHost})
}

// awaitAnswer repeats a request until it succeeds, for at most ten seconds.
func awaitAnswer(ctx context.Context, l load) error {
	l.connections, l.duration = 1, 50*time.Millisecond
	var r result
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		if r, err = l.run(ctx); err == nil && r.failed == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s does not respond with status 200 (%d of %d responses had another status): %w", l.address, r.failed, r.requests, err)
}
