//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	largeClusters = 10000
	largeSize     = 50 << 20
	manyUpdates   = 50000
	pacedUpdates  = 30000
	updatePace    = 10000
)

// relay compares the ways from a control plane to Envoy: direct, through the agent's relay (with and without storing the
// last accepted configuration on disk), and through a naive relay that decodes and encodes all messages. It measures each
// way with a real Envoy, and with a client that does not decode the messages.
func (b *bench) relay(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := b.newRelayBench(ctx)
	if err != nil {
		return err
	}
	p := m.plane
	if p.clusters, err = largeConfiguration(largeClusters, largeSize); err != nil {
		return err
	}
	if p.update, err = endpointUpdate(1); err != nil {
		return err
	}
	p.updateType = endpointType
	if err := m.large(ctx, fmt.Sprintf("%.1f MB of %d clusters until Envoy has accepted them", float64(len(p.clusters))/1e6, largeClusters), m.toEnvoy); err != nil {
		return err
	}
	if err := m.large(ctx, "the same clusters until a client that does not decode them has received all of them", m.toClient); err != nil {
		return err
	}
	m.ready = true
	return m.updates(ctx)
}

// newRelayBench starts the control plane of the measurement.
func (b *bench) newRelayBench(ctx context.Context) (*relayBench, error) {
	certs := filepath.Join(b.dir, "relay")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		return nil, err
	}
	if err := writeCertificates(certs, "plane"); err != nil {
		return nil, err
	}
	p := &plane{took: make(chan time.Duration, 1), accepted: make(chan time.Duration, 1)}
	if err := startPlaneOfBytes(ctx, certs, p); err != nil {
		return nil, err
	}
	return &relayBench{bench: b, plane: p, certs: certs, ways: []string{"direct", "pilotfish", "unkept", "naive"}}, nil
}

type relayBench struct {
	*bench
	plane *plane
	certs string
	ways  []string
	// ready: the relay runs as in an agent that was ready before the measurement.
	ready bool
}

// way is one way from a client to the control plane: a direct connection, or the socket of a running relay process.
type way struct {
	target string // for gRPC
	socket string
	pid    int
	stop   func()
}

func (m *relayBench) open(name string) (*way, error) {
	if name == "direct" {
		return &way{target: m.plane.address, stop: func() {}}, nil
	}
	socket := filepath.Join(m.dir, name+".sock")
	_ = os.Remove(socket)
	if err := os.RemoveAll(socket + ".lastgood"); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-relay", strings.Join([]string{name, socket, m.plane.address, filepath.Join(m.certs, "root.pem"), strconv.FormatBool(m.ready)}, ","))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &way{target: "unix:" + socket, socket: socket, pid: cmd.Process.Pid}
	w.stop = func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			return w, nil
		}
		if time.Now().After(deadline) {
			w.stop()
			return nil, fmt.Errorf("the %s relay does not listen", name)
		}
	}
}

// passage contains the costs of one transfer of the large configuration.
type passage struct {
	took, cpu time.Duration
	growth    float64 // increase of the relay's memory at its peak, in MB
}

func (m *relayBench) large(ctx context.Context, title string, pass func(context.Context, *way) (time.Duration, error)) error {
	seen := map[string][]passage{}
	for range m.rounds {
		for _, name := range m.ways {
			one, err := m.passage(ctx, name, pass)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			seen[name] = append(seen[name], one)
		}
	}
	fmt.Printf("%s: medians of %d rounds, in which the ways alternate\n", title, m.rounds)
	direct := medianBy(seen["direct"], func(p passage) float64 { return p.took.Seconds() })
	for _, name := range m.ways {
		took := medianBy(seen[name], func(p passage) float64 { return p.took.Seconds() })
		fmt.Printf("  %-10s %7.1f ms  x%.2f", name, took*1000, took/direct)
		if name != "direct" {
			fmt.Printf("   relay: %6.1f ms of CPU, %6.1f MB more memory at the peak",
				medianBy(seen[name], func(p passage) float64 { return p.cpu.Seconds() * 1000 }),
				medianBy(seen[name], func(p passage) float64 { return p.growth }))
		}
		fmt.Println()
	}
	return nil
}

func (m *relayBench) passage(ctx context.Context, name string, pass func(context.Context, *way) (time.Duration, error)) (p passage, err error) {
	w, err := m.open(name)
	if err != nil {
		return p, err
	}
	defer w.stop()
	var before float64
	var cpu time.Duration
	if w.pid != 0 {
		if before, err = statusField(fmt.Sprintf("/proc/%d/status", w.pid), "VmRSS:"); err != nil {
			return p, err
		}
		cpu, _ = cpuOf(w.pid)
	}
	if p.took, err = pass(ctx, w); err != nil || w.pid == 0 {
		return p, err
	}
	after, err := statusField(fmt.Sprintf("/proc/%d/status", w.pid), "VmHWM:")
	if err != nil {
		return p, err
	}
	spent, err := cpuOf(w.pid)
	p.cpu, p.growth = spent-cpu, (after-before)*1024/1e6
	return p, err
}

// cpuOf returns the CPU time of a process.
func cpuOf(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED: all threads, in nanoseconds
	var spent unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &spent)
	return time.Duration(spent.Nano()), err
}

// toEnvoy starts an Envoy that receives its clusters through w. It returns the time until Envoy has accepted them.
func (m *relayBench) toEnvoy(ctx context.Context, w *way) (time.Duration, error) {
	file := filepath.Join(m.dir, "relay-envoy.yaml")
	if err := os.WriteFile(file, []byte(m.bootstrap(w)), 0o600); err != nil {
		return 0, err
	}
	stop, err := start(m.dir, os.Environ(), m.envoy, "-c", file, "--disable-hot-restart", "-l", "error", "--concurrency", "1")
	if err != nil {
		return 0, err
	}
	defer func() { _ = stop() }()
	return await(ctx, m.plane.took)
}

func await(ctx context.Context, took <-chan time.Duration) (time.Duration, error) {
	select {
	case d := <-took:
		return d, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(2 * time.Minute):
		return 0, fmt.Errorf("Envoy has not accepted the clusters within two minutes")
	}
}

func (m *relayBench) bootstrap(w *way) string {
	address := "pipe: {path: " + w.socket + "}"
	security := ""
	if w.pid == 0 {
		host, port, _ := net.SplitHostPort(w.target)
		address = fmt.Sprintf("socket_address: {address: %s, port_value: %s}", host, port)
		security = fmt.Sprintf(`
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context: {validation_context: {trusted_ca: {filename: %s}}}`, filepath.Join(m.certs, "root.pem"))
	}
	return fmt.Sprintf(`
node: {id: bench, cluster: bench}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
stats_config: {stats_matcher: {reject_all: true}}
static_resources:
  clusters:
  - name: xds
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {%s}}}]}]}%s
`, address, security)
}

// dial connects to the control plane or the relay in the same way as Envoy does.
func (m *relayBench) dial(w *way) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if w.pid == 0 {
		pem, err := os.ReadFile(filepath.Join(m.certs, "root.pem"))
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		creds = credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	}
	return grpc.NewClient(w.target, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(rawCodec{})))
}

func (m *relayBench) stream(ctx context.Context, w *way, typeURL string) (grpc.ClientStream, func(), error) {
	conn, err := m.dial(w)
	if err != nil {
		return nil, nil, err
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName)
	if err == nil {
		err = s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{Id: "bench", Cluster: "bench"}})
	}
	return s, func() { _ = conn.Close() }, err
}

// toClient receives the clusters without decoding them, and returns the time until they have arrived.
func (m *relayBench) toClient(ctx context.Context, w *way) (time.Duration, error) {
	s, done, err := m.stream(ctx, w, clusterType)
	if err != nil {
		return 0, err
	}
	defer done()
	var size int
	if err := s.RecvMsg(&size); err != nil {
		return 0, err
	}
	if err := s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"}); err != nil {
		return 0, err
	}
	return await(ctx, m.plane.took)
}

// updates measures small updates, each with an ACK. It measures their maximum rate, and the relay's costs at the rate
// updatePace.
func (m *relayBench) updates(ctx context.Context) error {
	fmt.Printf("updates of %d bytes, each with an ACK: %d at the maximum rate, and %d at %d a second\n", len(m.plane.update), manyUpdates, pacedUpdates, updatePace)
	rates := map[string][]float64{}
	for range m.rounds {
		for _, name := range m.ways {
			m.plane.updates, m.plane.pace = manyUpdates, 0
			one, err := m.passage(ctx, name, m.takeUpdates)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rates[name] = append(rates[name], manyUpdates/one.took.Seconds())
		}
	}
	for _, name := range m.ways {
		m.plane.updates, m.plane.pace = pacedUpdates, updatePace
		one, err := m.passage(ctx, name, m.takeUpdates)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("  %-10s %8.0f a second at most (median of %d); paced %6.0f a second", name, medianOf(rates[name]), m.rounds, pacedUpdates/one.took.Seconds())
		if name != "direct" {
			fmt.Printf(", %5.1f µs of the relay's CPU each", float64(one.cpu.Nanoseconds())/pacedUpdates/1000)
		}
		fmt.Println()
	}
	m.plane.updates = 0
	return nil
}

func (m *relayBench) takeUpdates(ctx context.Context, w *way) (time.Duration, error) {
	s, done, err := m.stream(ctx, w, listenerType)
	if err != nil {
		return 0, err
	}
	defer done()
	typeURL := listenerType // the relay stores a configuration only if it has listeners
	for range 1 + m.plane.updates {
		var size int
		if err := s.RecvMsg(&size); err != nil {
			return 0, err
		}
		if typeURL == listenerType {
			typeURL = m.plane.updateType
			if err := errors.Join(s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: "1"}),
				s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL})); err != nil {
				return 0, err
			}
			continue
		}
		if err := s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: "1"}); err != nil {
			return 0, err
		}
	}
	return await(ctx, m.plane.accepted)
}

// editsPerRun is the number of edits in a measurement. editPace is their rate per second.
const editsPerRun, editPace = 200, 20

// relayEdits measures the relay's CPU time per edit, if the control plane responds to each edit with all resources of the
// type.
func (b *bench) relayEdits(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := b.newRelayBench(ctx)
	if err != nil {
		return err
	}
	m.ready = true
	fmt.Printf("CPU of the relay for each of %d edits, %d a second, medians of %d rounds, in which the ways alternate\n", editsPerRun, editPace, m.rounds)
	for _, edit := range []struct {
		name, typeURL string
		update        func() ([]byte, error)
	}{
		{"endpoints", endpointType, func() ([]byte, error) { return endpointUpdate(38) }},
		{"routes", routeType, func() ([]byte, error) { return routeUpdate(500_000) }},
		{"routes", routeType, func() ([]byte, error) { return routeUpdate(2_500_000) }},
	} {
		if m.plane.update, err = edit.update(); err != nil {
			return err
		}
		m.plane.updateType, m.plane.updates, m.plane.pace = edit.typeURL, editsPerRun, editPace
		seen := map[string][]passage{}
		for range m.rounds {
			for _, name := range m.ways[1:] {
				one, err := m.passage(ctx, name, m.takeUpdates)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				seen[name] = append(seen[name], one)
			}
		}
		for _, name := range m.ways[1:] {
			fmt.Printf("  %-10s %-10s %8.1f kB  %6.2f ms\n", edit.name, name, float64(len(m.plane.update))/1000,
				medianBy(seen[name], func(p passage) float64 { return p.cpu.Seconds() * 1000 / editsPerRun }))
		}
	}
	return nil
}

func medianBy(seen []passage, value func(passage) float64) float64 {
	var values []float64
	for _, p := range seen {
		values = append(values, value(p))
	}
	return medianOf(values)
}
