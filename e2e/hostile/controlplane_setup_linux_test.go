package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	serviceConfig = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: default}
spec:
  clusterIP: 10.0.0.9
  ports: [{name: http, port: 9080}]
`
	createCertificate = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
	deltaDiscovery    = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// controlPlane is a running `pilotfish control-plane`.
type controlPlane struct {
	pid                               int
	plain, secure, monitoring, tokens string
	config, state                     string
	roots                             *x509.CertPool
	log                               *testenv.Buffer
}

// startControlPlane starts the built binary on free ports and waits until it serves.
func startControlPlane(t *testing.T, flags ...string) *controlPlane {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "service.yaml"), []byte(serviceConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &controlPlane{config: config, state: filepath.Join(t.TempDir(), "state"), log: &testenv.Buffer{}}
	port := func(flag string, to *string) {
		number := testenv.FreePort(t)
		*to = fmt.Sprintf("127.0.0.1:%d", number)
		flags = append(flags, flag, strconv.Itoa(number))
	}
	port("--port", &c.plain)
	port("--secure-port", &c.secure)
	port("--monitoring-port", &c.monitoring)
	port("--token-port", &c.tokens)
	cmd := exec.Command(testenv.Bin(t, "pilotfish"), append([]string{"control-plane", "--config-dir", config, "--state-dir", c.state}, flags...)...)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.pid = cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("the control plane's log ends with:\n%s", tail(c.log.String(), 3000))
		}
	})
	testenv.Eventually(t, "the control plane is ready", c.checkReady)
	c.readRoots(t)
	return c
}

func (c *controlPlane) checkReady() error {
	resp, err := http.Get("http://" + c.monitoring + "/ready")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

func (c *controlPlane) assertReady(t *testing.T) {
	t.Helper()
	if err := c.checkReady(); err != nil {
		t.Errorf("the monitoring port: %v", err)
	}
}

// readRoots reads the mesh's root certificate from the state directory.
func (c *controlPlane) readRoots(t *testing.T) {
	t.Helper()
	c.roots = x509.NewCertPool()
	files, _ := filepath.Glob(filepath.Join(c.state, "*", "*.pem"))
	more, _ := filepath.Glob(filepath.Join(c.state, "*.pem"))
	found := false
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err == nil && bytes.Contains(data, []byte("BEGIN CERTIFICATE-")) {
			found = c.roots.AppendCertsFromPEM(data) || found
		}
	}
	if !found {
		t.Fatalf("no root certificate in %s", c.state)
	}
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

// token issues a token for a service account of namespace default.
func (c *controlPlane) token(t *testing.T, account string) string {
	t.Helper()
	out, err := exec.Command(testenv.Bin(t, "pilotfish"), "token", "--state-dir", c.state, "--service-account", account).Output()
	if err != nil {
		t.Fatalf("issuing a token: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func (c *controlPlane) tls() *tls.Config {
	return &tls.Config{RootCAs: c.roots, ServerName: "istiod.istio-system.svc", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
}

// dial returns a gRPC client of the secure port.
func (c *controlPlane) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(c.secure, grpc.WithTransportCredentials(credentials.NewTLS(c.tls())))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func addToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// retry repeats a client's operation while it fails because its connection was closed, as agents do.
func retry(ctx context.Context, operation func() error) error {
	for {
		err := operation()
		if status.Code(err) != codes.Unavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// certify requests a certificate over a new connection, as a starting agent does, and returns how long that took.
func (c *controlPlane) certify(t *testing.T, token, account string) (time.Duration, error) {
	t.Helper()
	csr, _ := makeRequest(account)
	conn := c.dial(t)
	defer conn.Close()
	start := time.Now()
	ctx, cancel := context.WithTimeout(addToken(t.Context(), token), 30*time.Second)
	defer cancel()
	err := retry(ctx, func() error {
		_, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
			&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600}, grpc.WaitForReady(true))
		return err
	})
	return time.Since(start), err
}

// discover opens a discovery stream over a new connection, as a starting agent does, and returns how long the clusters took.
func (c *controlPlane) discover(t *testing.T, token, account string) (time.Duration, error) {
	t.Helper()
	conn := c.dial(t)
	defer conn.Close()
	start := time.Now()
	ctx, cancel := context.WithTimeout(addToken(t.Context(), token), 30*time.Second)
	defer cancel()
	err := retry(ctx, func() error {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: sidecarNode(t, account), TypeUrl: clusterType}); err != nil && err != io.EOF {
			return err
		}
		_, err = stream.Recv()
		return err
	})
	return time.Since(start), err
}

func sidecarNode(t *testing.T, account string) *corev3.Node {
	t.Helper()
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "SERVICE_ACCOUNT": account,
		"INTERCEPTION_MODE": "NONE", "APP_ADDRESS": "127.68.60.3", "INSTANCE_IPS": "127.68.60.2"})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "sidecar~127.68.60.2~a.default~default.svc.cluster.local", Metadata: meta}
}

var residentSet = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB`)

// memory returns the resident memory of the control plane in MiB.
func (c *controlPlane) memory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))
	if err != nil {
		t.Errorf("the control plane has ended: %v", err)
		return 0
	}
	found := residentSet.FindSubmatch(status)
	if found == nil {
		t.Error("the control plane has no resident memory: it has ended")
		return 0
	}
	kib, _ := strconv.Atoi(string(found[1]))
	return kib >> 10
}

// maxGrowth is the growth in MiB at which an attack has succeeded, and is ended to spare the machine.
const maxGrowth = 1 << 10

// watchMemory samples the control plane's memory until stop is called, which returns how many MiB it grew at most.
func (c *controlPlane) watchMemory(t *testing.T) (stop func() int) {
	before, most := c.memory(t), 0
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if most = max(most, c.memory(t)-before); most > maxGrowth && !t.Failed() {
					t.Errorf("the control plane's memory grew by more than %d MiB: the attack ends early", maxGrowth)
				}
			}
		}
	}()
	return func() int {
		close(done)
		<-ended
		return most
	}
}

// rawClient is an HTTP/2 connection of an attacker, who sends what flow control permits.
type rawClient struct {
	conn   net.Conn
	framer *http2.Framer
	text   bytes.Buffer
	encode *hpack.Encoder
	nextID uint32

	mu      sync.Mutex // also for writing
	initial int64
	window  int64            // of the connection
	windows map[uint32]int64 // of the open streams
	err     error
}

// newRawClient performs the HTTP/2 handshake on a connection.
func newRawClient(conn net.Conn) (*rawClient, error) {
	c := &rawClient{conn: conn, framer: http2.NewFramer(conn, conn), nextID: 1, initial: 65535, window: 65535, windows: map[uint32]int64{}}
	c.encode = hpack.NewEncoder(&c.text)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := c.framer.WriteSettings(); err != nil {
		return nil, err
	}
	go c.read()
	return c, nil
}

func (c *rawClient) read() {
	for {
		frame, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.mu.Unlock()
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
					c.initial = int64(v)
				}
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.framer.WritePing(true, f.Data)
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.window += int64(f.Increment)
			} else if _, open := c.windows[f.StreamID]; open {
				c.windows[f.StreamID] += int64(f.Increment)
			}
		case *http2.RSTStreamFrame:
			delete(c.windows, f.StreamID)
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				delete(c.windows, f.StreamID)
			}
		}
		c.mu.Unlock()
	}
}

// open begins a gRPC call whose message is declared to have size bytes.
func (c *rawClient) open(path string, size int, headers ...string) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.text.Reset()
	fields := append([]string{":method", "POST", ":scheme", "https", ":path", path, ":authority", "istiod.istio-system.svc",
		"content-type", "application/grpc", "te", "trailers"}, headers...)
	for i := 0; i < len(fields); i += 2 {
		_ = c.encode.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	id := c.nextID
	c.nextID += 2
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.text.Bytes(), EndHeaders: true}); err != nil {
		return 0, err
	}
	c.windows[id] = c.initial - 5
	c.window -= 5
	return id, c.framer.WriteData(id, false, []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})
}

// send sends up to n bytes of a stream's message, as far as the windows permit, and returns how many.
func (c *rawClient) send(id uint32, n int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := 0
	for sent < n {
		part := min(int64(n-sent), c.window, c.windows[id], int64(len(filler)))
		if part <= 0 || c.err != nil {
			break
		}
		if err := c.framer.WriteData(id, false, filler[:part]); err != nil {
			return sent, err
		}
		sent += int(part)
		c.window -= part
		c.windows[id] -= part
	}
	return sent, c.err
}

// isOpen reports whether the server has not ended the stream.
func (c *rawClient) isOpen(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, open := c.windows[id]
	return open && c.err == nil
}

var filler = bytes.Repeat([]byte{'x'}, 16<<10)

// countSockets returns how many sockets a process has open.
func countSockets(t *testing.T, pid int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Errorf("the control plane has ended: %v", err)
		return 0
	}
	n := 0
	for _, file := range files {
		if to, err := os.Readlink(filepath.Join(dir, file.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
