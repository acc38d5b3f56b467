//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bench/fleet"
)

func now() int64 { return time.Now().UnixNano() }

// sizes parses a comma-separated list of numbers, such as "100,400".
func sizes(text string) (list []int, err error) {
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// controlPlane measures the control plane with clients in another process. For each number of services and proxies, it
// measures the cold start, each kind of change, and the reconnection of all clients.
func (b *bench) controlPlane(ctx context.Context) error {
	return b.eachSize(func(services, proxies int) error { return b.planeWith(ctx, services, proxies) })
}

// eachSize calls measure for each combination of services and proxies.
func (b *bench) eachSize(measure func(services, proxies int) error) error {
	services, err := sizes(b.services)
	if err != nil {
		return fmt.Errorf("-services: %w", err)
	}
	proxies, err := sizes(b.proxies)
	if err != nil {
		return fmt.Errorf("-proxies: %w", err)
	}
	for _, s := range services {
		for _, p := range proxies {
			if err := measure(s, p); err != nil {
				return fmt.Errorf("%d services, %d proxies: %w", s, p, err)
			}
		}
	}
	return nil
}

// planeRun contains the measurements of one running control plane and its clients.
type planeRun struct {
	pid     int
	proxies int
	mesh    *planeMesh
	fleet   *rpc.Client
	costs   []planeCost
}

// planeCost contains the costs of one operation. For a repeated change, they are medians.
type planeCost struct {
	what      string
	time, cpu time.Duration
	bytes     float64 // number of bytes that each proxy received
	peak      float64 // peak memory of the control plane so far, in MB
}

func (b *bench) planeWith(ctx context.Context, services, proxies int) error {
	fmt.Printf("%d services of %d endpoints, %d proxies, plus %d slow and %d refusing ones\n", services, planeEndpoints, proxies, b.slow, b.refusing)
	_, err := b.measurePlane(ctx, services, proxies, b.pilotfishPlane)
	return err
}

// measurePlane runs a control plane with its own files and clients, and returns the costs of each operation.
func (b *bench) measurePlane(ctx context.Context, services, proxies int, of planeOf) ([]planeCost, error) {
	dir, err := os.MkdirTemp(b.dir, "plane")
	if err != nil {
		return nil, err
	}
	run := &planeRun{proxies: proxies, mesh: &planeMesh{dir: filepath.Join(dir, "config"), services: services}}
	if err := run.mesh.write(); err != nil {
		return nil, err
	}
	program, err := of(ctx, dir, run.mesh)
	if err != nil {
		return nil, err
	}
	stop, err := run.start(program, filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer stop()
	stopFleet, err := run.startFleet(ctx)
	if err != nil {
		return nil, err
	}
	defer stopFleet()
	if err := run.cold(program.address, b.slow, b.refusing); err != nil {
		return nil, fmt.Errorf("connecting all clients: %w", err)
	}
	for _, e := range planeEdits {
		if b.edits != "" && !slices.Contains(strings.Split(b.edits, ","), e.name) {
			continue
		}
		if err := run.change(e.name, e.edit, b.rounds); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if err := run.reconnect(); err != nil {
		return nil, fmt.Errorf("reconnecting all clients: %w", err)
	}
	return run.costs, ctx.Err()
}

// planeProgram describes a command that starts a control plane.
type planeProgram struct {
	cmd     *exec.Cmd
	address string // plaintext gRPC address
	ready   string // URL that returns 200 when it is ready
}

// planeOf is a function that returns the command of a control plane which serves the files of a mesh. The function may
// write into dir.
type planeOf func(ctx context.Context, dir string, mesh *planeMesh) (planeProgram, error)

func (b *bench) pilotfishPlane(ctx context.Context, dir string, mesh *planeMesh) (planeProgram, error) {
	plain, monitoring, err := freePorts()
	if err != nil {
		return planeProgram{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish"), "control-plane", "--config-dir", mesh.dir,
		"--state-dir", filepath.Join(dir, "state"), "--port", plain, "--monitoring-port", monitoring, "--secure-port", "-1", "--token-port", "-2")
	return planeProgram{cmd, "127.0.0.1:" + plain, "http://127.0.0.1:" + monitoring + "/ready"}, nil
}

// start starts the control plane, waits until it is ready, and records the costs of the start.
func (r *planeRun) start(p planeProgram, logFile string) (stop func(), err error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = p.cmd.Process.Signal(syscall.SIGTERM); _ = p.cmd.Wait() } // its exit status is not relevant
	r.pid = p.cmd.Process.Pid
	if err := awaitReady(p.ready); err != nil {
		stop()
		text, _ := os.ReadFile(logFile)
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	took := time.Since(began)
	cpu, err := cpuTime(r.pid)
	if err != nil {
		stop()
		return nil, err
	}
	r.costs = append(r.costs, planeCost{"start", took, cpu, 0, r.peak()})
	fmt.Printf("  %-18s %6.0f ms  CPU %8.0f ms  %s\n", "start", ms(took), ms(cpu), r.memory())
	return stop, nil
}

func freePorts() (a, b string, err error) {
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer l.Close()
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
	}
	return ports[0], ports[1], nil
}

func awaitReady(url string) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		response, err := http.Get(url)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s returns %s", url, response.Status)
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// startFleet starts this program as a child process that simulates the clients.
func (r *planeRun) startFleet(ctx context.Context) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-fleet")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.fleet = rpc.NewClient(pipes{out, in})
	return func() { _ = r.fleet.Close(); _ = cmd.Wait() }, nil
}

// pipes combines the read end of one pipe and the write end of another into a connection.
type pipes struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p pipes) Close() error { _ = p.out.Close(); return p.ReadCloser.Close() }

// cold measures the first connections: all clients connect concurrently to a newly started control plane.
func (r *planeRun) cold(address string, slow, refusing int) error {
	var report fleet.Report
	cpu, err := r.cpuTimeOf(func() error {
		return r.fleet.Call("Fleet.Connect", fleet.Options{
			Address: address, Proxies: r.proxies, Namespaces: planeNamespaces, Slow: slow, Refusing: refusing, Timeout: 2 * time.Minute,
		}, &report)
	})
	if err != nil {
		return err
	}
	r.print("cold", report, cpu)
	return nil
}

func (r *planeRun) reconnect() error {
	var report fleet.Report
	cpu, err := r.cpuTimeOf(func() error { return r.fleet.Call("Fleet.Reconnect", struct{}{}, &report) })
	if err != nil {
		return err
	}
	r.print("all reconnect", report, cpu)
	time.Sleep(6 * time.Second) // wait, so that the next line reports the idle memory
	fmt.Printf("  %-18s %s\n", "at rest", r.memory())
	return nil
}

// change measures an edit of the mesh's files. It makes the edit rounds times, each time of another service.
func (r *planeRun) change(name string, edit func(*planeMesh) planeEdit, rounds int) error {
	if rounds == 0 {
		return nil
	}
	var p50, maxima, cpus, bytes, responses []float64
	var refused int64
	for range rounds {
		if name == "service removed" { // a service to remove must exist
			var ignored fleet.Report
			if _, err := r.measureOnce(r.mesh.addService(), &ignored); err != nil {
				return err
			}
		}
		var report fleet.Report
		cpu, err := r.measureOnce(edit(r.mesh), &report)
		if err != nil {
			return err
		}
		p50, maxima = append(p50, ms(report.P50)), append(maxima, ms(report.Max))
		cpus, bytes = append(cpus, ms(cpu)), append(bytes, float64(report.Bytes)/float64(r.proxies))
		responses = append(responses, float64(report.Responses)/float64(r.proxies))
		refused = report.Refused
	}
	fmt.Printf("  %-18s p50 %5.0f  all %5.0f ms (maximum %5.0f)  CPU %8.0f ms  a proxy %8.0f bytes in %.1f responses\n", name,
		medianOf(p50), medianOf(clone(maxima)), slices.Max(maxima), medianOf(cpus), medianOf(bytes), medianOf(responses))
	r.costs = append(r.costs, planeCost{name, parseMS(medianOf(maxima)), parseMS(medianOf(cpus)), medianOf(bytes), r.peak()})
	if refused > 0 {
		fmt.Printf("  %-18s %d responses so far\n", "refused", refused)
	}
	return nil
}

func (r *planeRun) measureOnce(e planeEdit, report *fleet.Report) (cpu time.Duration, err error) {
	if err := r.fleet.Call("Fleet.Expect", e.sign, &struct{}{}); err != nil {
		return 0, err
	}
	return r.cpuTimeOf(func() error {
		since, err := e.apply()
		if err != nil {
			return err
		}
		await := "Fleet.Await"
		if e.text == "" {
			await = "Fleet.AwaitAny" // after a removal, no response contains the marker
		}
		if err := r.fleet.Call(await, since, report); err != nil {
			return err
		}
		if e.last {
			report.Max = report.Last
		}
		return nil
	})
}

// cpuTimeOf runs do, and returns the CPU time that the control plane uses meanwhile.
func (r *planeRun) cpuTimeOf(do func() error) (time.Duration, error) {
	before, err := cpuTime(r.pid)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := cpuTime(r.pid)
	return after - before, err
}

func (r *planeRun) memory() string {
	file := fmt.Sprintf("/proc/%d/status", r.pid)
	now, _ := statusField(file, "VmRSS:")
	peak, _ := statusField(file, "VmHWM:")
	return fmt.Sprintf("memory %4.0f MB, at most %4.0f", now/1024, peak/1024)
}

func (r *planeRun) peak() float64 {
	peak, _ := statusField(fmt.Sprintf("/proc/%d/status", r.pid), "VmHWM:")
	return peak / 1024
}

func (r *planeRun) print(what string, report fleet.Report, cpu time.Duration) {
	r.costs = append(r.costs, planeCost{what, report.Max, cpu, float64(report.Bytes) / float64(r.proxies), r.peak()})
	fmt.Printf("  %-18s all %6.0f ms  CPU %8.0f ms  a proxy %8.0f bytes in %.1f responses  %s\n", what, ms(report.Max), ms(cpu),
		float64(report.Bytes)/float64(r.proxies), float64(report.Responses)/float64(r.proxies), r.memory())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func parseMS(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
