//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	meshNames    = 10_000
	outerNames   = 5_000
	nameAddress  = "127.198.9.1"
	ourNamesPort = 15053
	unboundPort  = 15054
	resolverPort = 15055
	pacedRate    = 2000 // queries per second in the measurement of the latency
)

// nameServer is one of the compared DNS servers.
type nameServer struct {
	name string
	port int
	pid  int
	stop func() error
}

// nameRun is the result of one load on one server: queries per second, and CPU time per query in microseconds.
type nameRun struct{ perSecond, cpu float64 }

// names compares the agent's DNS server with unbound. Both serve the same data: names of the mesh, forwarded names that are
// not cached, and forwarded names that are cached.
func (b *bench) names(ctx context.Context) error {
	for _, program := range []string{"unbound", "dnsperf"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: install the package of that name", program)
		}
	}
	if err := b.writeNameFiles(); err != nil {
		return err
	}
	runs := map[string][]nameRun{}
	tails := map[string][]float64{}
	for range b.rounds {
		if err := b.nameRound(ctx, runs, tails); err != nil {
			return err
		}
	}
	fmt.Printf("DNS: %d names of the mesh, %d other names, medians of %d rounds (dnsperf; p99 at %d questions a second)\n", meshNames, outerNames, b.rounds, pacedRate)
	for _, what := range []string{"mesh", "first", "known"} {
		ours, theirs := runs["ours "+what], runs["unbound "+what]
		q, q2 := medianRun(ours, func(r nameRun) float64 { return r.perSecond }), medianRun(theirs, func(r nameRun) float64 { return r.perSecond })
		c, c2 := medianRun(ours, func(r nameRun) float64 { return r.cpu }), medianRun(theirs, func(r nameRun) float64 { return r.cpu })
		fmt.Printf("  %-6s ours %7.0f/s %5.1f µs CPU, unbound %7.0f/s %5.1f µs CPU: x%.2f questions, x%.2f CPU", what, q, c, q2, c2, q/q2, c/c2)
		if t, t2 := tails["ours "+what], tails["unbound "+what]; len(t) > 0 {
			fmt.Printf("; p99 %.0f and %.0f µs", medianOf(t), medianOf(t2))
		}
		fmt.Println()
	}
	return nil
}

func medianRun(runs []nameRun, of func(nameRun) float64) float64 {
	var values []float64
	for _, r := range runs {
		values = append(values, of(r))
	}
	return medianOf(values)
}

func meshName(i int) string  { return fmt.Sprintf("n%d.shop.svc.cluster.local", i) }
func outerName(i int) string { return fmt.Sprintf("o%d.outer.example", i) }
func nameIP(i int) string    { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String() }

// writeNameFiles writes the files for two unbound servers and dnsperf.
func (b *bench) writeNameFiles() error {
	var mesh, outer, meshData, outerData strings.Builder
	for i := range meshNames {
		fmt.Fprintf(&mesh, "%s A\n", meshName(i))
		fmt.Fprintf(&meshData, "  local-data: \"%s. 30 IN A %s\"\n", meshName(i), nameIP(i))
	}
	for i := range outerNames {
		fmt.Fprintf(&outer, "%s A\n", outerName(i))
		fmt.Fprintf(&outerData, "  local-data: \"%s. 3600 IN A %s\"\n", outerName(i), nameIP(i))
	}
	conf := func(port int, more string) string {
		return fmt.Sprintf(`server:
  interface: %s@%d
  do-daemonize: no
  chroot: ""
  username: ""
  pidfile: ""
  directory: %q
  use-syslog: no
  num-threads: 1
  module-config: "iterator"
  do-not-query-localhost: no
  access-control: 127.0.0.0/8 allow
  local-zone: "cluster.local." static
  local-zone: "outer.example." transparent
%s
remote-control:
  control-enable: no
`, nameAddress, port, b.dir, more)
	}
	forward := fmt.Sprintf("forward-zone:\n  name: \".\"\n  forward-addr: %s@%d\n", nameAddress, resolverPort)
	for file, text := range map[string]string{
		"mesh.txt": mesh.String(), "outer.txt": outer.String(),
		"unbound.conf":  conf(unboundPort, meshData.String()) + forward,
		"resolver.conf": conf(resolverPort, outerData.String()),
		"resolv.conf":   fmt.Sprintf("nameserver %s:%d\n", nameAddress, resolverPort),
	} {
		if err := os.WriteFile(filepath.Join(b.dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) nameRound(ctx context.Context, runs map[string][]nameRun, tails map[string][]float64) (err error) {
	resolver, err := b.startNames(ctx, "resolver", resolverPort, "unbound", "-d", "-p", "-c", filepath.Join(b.dir, "resolver.conf"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resolver.stop()) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ours, err := b.startNames(ctx, "ours", ourNamesPort, self, "-serve-names", filepath.Join(b.dir, "resolv.conf"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	theirs, err := b.startNames(ctx, "unbound", unboundPort, "unbound", "-d", "-p", "-c", filepath.Join(b.dir, "unbound.conf"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.stop()) }()
	for _, l := range []struct {
		what, file string
		once       bool
	}{{"mesh", "mesh.txt", false}, {"first", "outer.txt", true}, {"known", "outer.txt", false}} {
		for _, side := range []*nameServer{ours, theirs} {
			run, err := b.perf(ctx, side, l.file, l.once)
			if err != nil {
				return err
			}
			key := side.name + " " + l.what
			runs[key] = append(runs[key], run)
			if l.once {
				continue
			}
			tail, err := b.paced(ctx, side.port, l.what == "mesh")
			if err != nil {
				return err
			}
			tails[key] = append(tails[key], tail)
		}
	}
	return nil
}

// startNames starts a server, and waits until it responds.
func (b *bench) startNames(ctx context.Context, name string, port int, program string, args ...string) (*nameServer, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &nameServer{name: name, port: port, pid: cmd.Process.Pid, stop: func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil
	}}
	m := new(mdns.Msg)
	m.SetQuestion("n1.shop.svc.cluster.local.", mdns.TypeA)
	client := mdns.Client{Timeout: 200 * time.Millisecond}
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		if _, _, err = client.Exchange(m, net.JoinHostPort(nameAddress, strconv.Itoa(port))); err == nil {
			return s, nil
		}
		backoff.Sleep(ctx, 50*time.Millisecond)
	}
	return nil, errors.Join(fmt.Errorf("%s does not respond: %w", name, err), s.stop())
}

// perf measures a server with dnsperf. It sends the queries in a file, once or repeatedly.
func (b *bench) perf(ctx context.Context, s *nameServer, file string, once bool) (nameRun, error) {
	limit := []string{"-l", strconv.Itoa(max(1, int(b.load.Seconds())))}
	if once {
		limit = []string{"-n", "1"}
	}
	before, err := cpuTime(s.pid)
	if err != nil {
		return nameRun{}, err
	}
	args := append([]string{"-s", nameAddress, "-p", strconv.Itoa(s.port), "-d", filepath.Join(b.dir, file), "-c", "8", "-q", "64"}, limit...)
	out, err := exec.CommandContext(ctx, "dnsperf", args...).CombinedOutput()
	if err != nil {
		return nameRun{}, fmt.Errorf("dnsperf: %w: %s", err, out)
	}
	after, err := cpuTime(s.pid)
	if err != nil {
		return nameRun{}, err
	}
	completed, perSecond := perfNumber(string(out), "Queries completed:"), perfNumber(string(out), "Queries per second:")
	lost := perfNumber(string(out), "Queries lost:")
	if completed == 0 || lost > completed/1000 || !strings.Contains(string(out), "NOERROR") || strings.Contains(string(out), "SERVFAIL") {
		return nameRun{}, fmt.Errorf("%s lost queries or returned errors: %s", s.name, out)
	}
	return nameRun{perSecond: perSecond, cpu: float64((after - before).Microseconds()) / completed}, nil
}

func perfNumber(out, label string) float64 {
	_, rest, _ := strings.Cut(out, label)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseFloat(fields[0], 64)
	return n
}

// cpuTime returns the CPU time of all threads of a process.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("the threads of process %d cannot be listed in /proc", pid)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has probably exited
		}
		n, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		sum += time.Duration(n)
	}
	return sum, nil
}

// paced sends queries at pacedRate, which leaves the server mostly idle. It returns the 99th percentile of the latency in
// microseconds.
func (b *bench) paced(ctx context.Context, port int, mesh bool) (float64, error) {
	conn, err := net.Dial("udp", net.JoinHostPort(nameAddress, strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var took []float64
	buffer := make([]byte, 4096)
	for i, end := 0, time.Now().Add(b.load); time.Now().Before(end) && ctx.Err() == nil; i++ {
		m := new(mdns.Msg)
		m.SetQuestion(outerName(i%outerNames)+".", mdns.TypeA)
		if mesh {
			m.SetQuestion(meshName(i%meshNames)+".", mdns.TypeA)
		}
		wire, err := m.Pack()
		if err != nil {
			return 0, err
		}
		sent := time.Now()
		_ = conn.SetReadDeadline(sent.Add(5 * time.Second))
		if _, err := conn.Write(wire); err != nil {
			return 0, err
		}
		if _, err := conn.Read(buffer); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(sent).Microseconds()))
		backoff.Sleep(ctx, time.Second/pacedRate-time.Since(sent))
	}
	slices.Sort(took)
	return took[len(took)*99/100], nil
}

// serveNames runs the agent's DNS server in this process, with the garbage collector settings of an idle agent.
func serveNames(ctx context.Context, resolvConf string) error {
	debug.SetGCPercent(40)
	server, err := dns.New(dns.Config{
		Listen: []string{net.JoinHostPort(nameAddress, strconv.Itoa(ourNamesPort))}, ResolvConf: resolvConf,
		Namespace: "shop", Domain: "shop.svc.cluster.local",
	})
	if err != nil {
		return err
	}
	table := &dns.Table{Hosts: map[string]dns.Entry{}}
	for i := range meshNames {
		table.Hosts[meshName(i)] = dns.Entry{IPs: []netip.Addr{netip.MustParseAddr(nameIP(i))}, Registry: "Kubernetes",
			ShortName: "n" + strconv.Itoa(i), Namespace: "shop"}
	}
	server.SetNames(table)
	return server.Run(ctx)
}
