//go:build linux

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

//go:embed hand mesh
var files embed.FS

// side contains the results of one of the compared ways to send requests.
type side struct {
	name    string
	address string
	target  string
	rps     []float64
	p50     []float64 // microseconds
	p99     []float64
}

// path compares requests through two sidecars with direct requests, and with requests through two manually configured
// Envoys with the same filters. It measures the three ways alternately, with the same application.
func (b *bench) path(ctx context.Context) error {
	stopMesh, err := b.startMesh(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stopMesh() }() // only needed for the measurement
	stopHand, err := b.startHand(ctx)
	if err != nil {
		return err
	}
	defer stopHand()
	sides := []*side{
		{name: "direct", address: meshApp + ":8080", target: "/"},
		{name: "two manual Envoys", address: handClient + ":15080", target: "http://server:8080/"},
		{name: "two sidecars", address: meshClient + ":15080", target: "http://server:8080/"},
	}
	for _, connections := range []int{1, 32} {
		if err := b.compare(ctx, sides, connections); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) compare(ctx context.Context, sides []*side, connections int) error {
	for _, s := range sides {
		s.rps, s.p50, s.p99 = nil, nil, nil
	}
	for round := range b.rounds + 1 {
		for _, s := range sides {
			l := load{address: s.address, target: s.target, host: "server:8080", connections: connections, duration: b.load}
			if round == 0 {
				l.duration /= 3 // warm-up, without a result
			}
			r, err := l.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if r.failed > 0 {
				return fmt.Errorf("%s: %d of %d responses did not have status 200", s.name, r.failed, r.requests)
			}
			if round > 0 {
				s.rps = append(s.rps, r.perSecond())
				s.p50 = append(s.p50, float64(r.p50.Microseconds()))
				s.p99 = append(s.p99, float64(r.p99.Microseconds()))
			}
		}
	}
	fmt.Printf("%d connections, medians of %d loads of %s in turn\n", connections, b.rounds, b.load)
	fmt.Printf("  %-20s %10s %9s %9s   %s\n", "", "requests/s", "p50", "p99", "ratio of requests/s and p99 to the sidecars', round by round")
	ours := sides[len(sides)-1]
	for _, s := range sides {
		fmt.Printf("  %-20s %10.0f %6.0f µs %6.0f µs   x%.2f  x%.2f\n", s.name, medianOf(clone(s.rps)), medianOf(clone(s.p50)), medianOf(clone(s.p99)),
			ratio(s.rps, ours.rps), ratio(s.p99, ours.p99))
	}
	return nil
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

// unpack writes the embedded files in from to the directory to. values are pairs of a placeholder and its replacement.
func unpack(from, to string, values ...string) error {
	replace := strings.NewReplacer(values...)
	return fs.WalkDir(files, from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
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

func (b *bench) startHand(ctx context.Context) (stop func(), err error) {
	dir := filepath.Join(b.dir, "hand")
	var stops []func() error
	stop = func() {
		for _, s := range stops {
			_ = s() // only needed for the measurement
		}
	}
	for _, p := range []struct{ name, address, peer string }{
		{"client", handClient, handServer}, {"server", handServer, meshApp},
	} {
		if err := unpack("hand", dir, "${ADDRESS}", p.address, "${PEER}", p.peer); err != nil {
			return nil, err
		}
		if len(stops) == 0 {
			if err := writeCertificates(dir, "client", "server"); err != nil {
				return nil, err
			}
		}
		// One worker thread, as in the sidecars of the local mesh.
		s, err := start(dir, os.Environ(), b.envoy, "-c", p.name+".yaml", "--disable-hot-restart", "-l", "warning", "--concurrency", "1")
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
		if _, err := awaitOK(ctx, "http://"+p.address+":15000/ready"); err != nil {
			stop()
			return nil, fmt.Errorf("manual Envoy %s: %w", p.name, err)
		}
	}
	if err := awaitAnswer(ctx, load{address: handClient + ":15080", target: "http://server:8080/", host: "server:8080"}); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// awaitAnswer repeats a request until it succeeds.
func awaitAnswer(ctx context.Context, l load) error {
	l.connections, l.duration = 1, 50*time.Millisecond
	var r result
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		if r, err = l.run(ctx); err == nil && r.failed == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s does not respond with status 200 (%d of %d responses had another): %w", l.address, r.failed, r.requests, err)
}
