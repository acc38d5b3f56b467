//go:build linux

// Command bench measures pilotfish. Where possible, it compares pilotfish with a baseline: the agent with Envoy alone, and
// requests through two sidecars with direct requests. It measures both sides alternately and prints their ratios, because
// other load on the machine affects both.
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

	services, proxies string // comma-separated numbers of services and of proxies of the control plane
	slow, refusing    int    // numbers of additional clients that read almost nothing, and that NACK everything
	istiod            string // path of Istio's control plane
	proxyConfig       string // additional fields of the compared agents' ProxyConfig
	earlier           string // directory of an earlier build of the agent
	key               string // key type of certificates; "" is RSA
	turns             int    // number of alternating measurements with istiod
	edits             string // comma-separated kinds of changes to measure; empty selects all
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{}
	version := flag.String("envoy-version", "", "`version` of the Envoy in pilotfish's cache that the measurements use, such as 1.40.0; only controlplane, relay and dns run without it")
	only := flag.String("only", "startup,rest,end,probe,scrape,certificate,path,relay", "comma-separated `names` of the measurements to run: startup, rest (the idle agent), end (shutdown), probe, scrape, certificate, exchange (of tokens), path (of requests), metrics, relay, relay-edits, controlplane, beside (comparison with istiod; requires -istiod), agents, agent-start and agent-scrape (comparisons with Istio's agent; require -istiod and root), scope, cni, capture and redirect (require root), dns (requires unbound and dnsperf)")
	flag.StringVar(&b.services, "services", "1000", "comma-separated `numbers` of services; the control plane is measured with each of them")
	flag.StringVar(&b.proxies, "proxies", "100,400,1000", "comma-separated `numbers` of proxies; the control plane is measured with each of them")
	flag.IntVar(&b.slow, "slow", 0, "number of additional control plane clients that read almost nothing")
	flag.IntVar(&b.refusing, "refusing", 0, "number of additional control plane clients that NACK everything")
	flag.StringVar(&b.edits, "edits", "", "comma-separated `kinds` of changes with which the control plane is measured, such as \"endpoint,service added\" (default: all)")
	flag.StringVar(&b.istiod, "istiod", "", "`path` of Istio's pilot-discovery, for the comparisons with istiod and Istio's agent")
	flag.StringVar(&b.key, "key", "ECDSA", "key `type` of the certificates in comparisons of agents: ECDSA, or empty for RSA")
	flag.StringVar(&b.earlier, "earlier", "", "`directory` of the binaries of an earlier build, which comparisons of agents also measure (default: none)")
	flag.IntVar(&b.turns, "turns", 3, "number of times that each side is measured in a comparison of control planes or agents")
	asFleet := flag.Bool("fleet", false, "internal: simulate the proxies of a control plane, controlled over stdin and stdout")
	relay := flag.String("relay", "", "internal: run an xDS relay to a control plane, as kind,socket,address,roots,ready")
	serveAt := flag.String("serve", "", "internal: run the application behind the proxies, and listen at this address")
	namesBy := flag.String("serve-names", "", "internal: run the agent's DNS server with this resolv.conf")
	var one load
	flag.StringVar(&one.address, "load-at", "", "internal: generate one load at this address, and print its result")
	flag.StringVar(&one.target, "load-target", "/", "internal: request target (path or URL) of the load of -load-at")
	flag.IntVar(&one.connections, "connections", 1, "internal: number of connections of the load of -load-at")
	flag.StringVar(&b.bin, "bin", "bin", "`directory` of the project's binaries")
	flag.IntVar(&b.rounds, "rounds", 7, "number of times that each side is measured")
	flag.DurationVar(&b.load, "load", 3*time.Second, "duration of each load with requests")
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
	// The path must be short, because the directory contains unix sockets.
	if b.dir, err = os.MkdirTemp("", "pfbench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	parts := strings.Split(*only, ",")
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{"startup", b.startup}, {"rest", b.idle}, {"end", b.shutdown}, {"probe", b.probe}, {"scrape", b.scrape}, {"certificate", b.certificate}, {"exchange", b.exchange}, {"path", b.path}, {"metrics", b.metrics}, {"relay", b.relay}, {"relay-edits", b.relayEdits}, {"controlplane", b.controlPlane}, {"beside", b.compareIstiod}, {"agents", b.agents}, {"agent-start", b.agentStart}, {"agent-scrape", b.agentScrape}, {"scope", b.scope}, {"dns", b.names}, {"cni", b.cni}, {"capture", b.capture}, {"redirect", b.redirection}} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return ctx.Err()
}

// start starts a process. The kernel kills it if the benchmark exits. stop stops it; if the process failed, the error
// contains its output.
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

// median sorts durations, and returns their median.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func medianOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
