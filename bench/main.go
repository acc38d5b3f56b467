//go:build linux

// Command bench compares pilotfish with its parts: the agent with Envoy alone, and a request through two sidecars with
// a direct one and with two manually configured Envoys. Each comparison runs both sides in turn and prints ratios,
// because the machines are shared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bench/fleet"
)

// bench is one run of the program.
type bench struct {
	bin    string // directory of the project's binaries
	envoy  string // path of Envoy
	dir    string // temporary directory
	rounds int
	load   time.Duration // duration of one load

	services, proxies string // numbers of services and clients for the control plane
	slow, refusing    int    // additional clients that read almost nothing, and that NACK everything
	istiod            string // path of Istio's control plane
	key               string // key type of certificates; "" is RSA
	turns             int    // number of alternating measurements with istiod
	edits             string // measured kinds of changes; empty: all
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{}
	version := flag.String("envoy-version", "", "version of the Envoy in the cache to use")
	only := flag.String("only", "startup,rest,end,probe,scrape,certificate,path,relay", "what to measure: startup, rest, end, probe, scrape, certificate, exchange, path, metrics, relay, relay-edits, controlplane, beside and agents (need -istiod; agents also root), scope, cni and capture and redirect (as root), dns (needs unbound and dnsperf)")
	flag.StringVar(&b.services, "services", "1000", "how many services the control plane has, one mesh after the other")
	flag.StringVar(&b.proxies, "proxies", "100,400,1000", "how many proxies the control plane has, one fleet after the other")
	flag.IntVar(&b.slow, "slow", 0, "number of additional control plane clients that read almost nothing")
	flag.IntVar(&b.refusing, "refusing", 0, "number of additional control plane clients that NACK everything")
	flag.StringVar(&b.edits, "edits", "", "which changes the control plane is measured with, such as \"endpoint,service added\"; none is all")
	flag.StringVar(&b.istiod, "istiod", "", "path of Istio's pilot-discovery, to compare the control planes")
	flag.StringVar(&b.key, "key", "ECDSA", "key type of the certificates of two compared agents: ECDSA, or empty for RSA")
	flag.IntVar(&b.turns, "turns", 3, "number of alternating measurements of two control planes or agents")
	asFleet := flag.Bool("fleet", false, "act as the proxies of a control plane, controlled over standard input")
	relay := flag.String("relay", "", "be a relay on the way from a control plane: kind,socket,address,roots")
	serveAt := flag.String("serve", "", "be the application behind the proxies, at this address")
	namesBy := flag.String("serve-names", "", "be the DNS server, with this resolv.conf")
	var one load
	flag.StringVar(&one.address, "load-at", "", "make one load at this address, and print its result")
	flag.StringVar(&one.target, "load-target", "/", "the target of that load's requests")
	flag.IntVar(&one.connections, "connections", 1, "the connections of that load")
	flag.StringVar(&b.bin, "bin", "bin", "directory of the project's binaries")
	flag.IntVar(&b.rounds, "rounds", 7, "how often each side is measured")
	flag.DurationVar(&b.load, "load", 3*time.Second, "how long each load lasts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *serveAt != "" {
		return serve(ctx, *serveAt)
	}
	if one.address != "" {
		return b.loadFor(ctx, one)
	}
	if *asFleet {
		return fleet.Serve(pipes{os.Stdin, os.Stdout})
	}
	if *relay != "" {
		return relayAs(ctx, *relay)
	}
	if *namesBy != "" {
		return serveNames(ctx, *namesBy)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	b.envoy = filepath.Join(cache, "pilotfish", "envoy", *version, "envoy")
	if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}
	// A short path, because it contains unix sockets.
	if b.dir, err = os.MkdirTemp("", "pfbench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	parts := strings.Split(*only, ",")
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{"startup", b.startup}, {"rest", b.idle}, {"end", b.shutdown}, {"probe", b.probe}, {"scrape", b.scrape}, {"certificate", b.certificate}, {"exchange", b.exchange}, {"path", b.path}, {"metrics", b.metrics}, {"relay", b.relay}, {"relay-edits", b.relayEdits}, {"controlplane", b.controlPlane}, {"beside", b.compareIstiod}, {"agents", b.agents}, {"scope", b.scope}, {"dns", b.names}, {"cni", b.cni}, {"capture", b.capture}, {"redirect", b.redirection}} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return ctx.Err()
}

// start starts a process that ends with the benchmark. Its output is printed only if it fails.
func start(dir string, env []string, name string, args ...string) (stop func() error, err error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	output := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // Wait reports an earlier exit
		err := cmd.Wait()
		if exit := (&exec.ExitError{}); errors.As(err, &exit) && exit.ExitCode() != 143 && exit.ExitCode() != 0 {
			return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, output.String())
		}
		return nil
	}, nil
}

// median returns the median of durations, and sorts them.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func medianOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
