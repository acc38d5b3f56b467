package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func wrapped(n uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(n) }

// role makes the test binary an application: gRPC reads where its bootstrap is when a process starts.
const role = "PILOTFISH_TEST_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch r, address, _ := strings.Cut(os.Getenv(role), " "); r {
	case "client":
		err = client(os.Stdin, os.Stdout)
	case "server":
		err = serve(address)
	case "files":
		err = serveFiles(address)
	default:
		flag.Parse()
		_ = flag.Set("test.parallel", "8") // most tests only wait
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// client makes a call to the service that each line names, with the metadata that follow it, and writes which address
// answered.
func client(in io.Reader, out io.Writer) error {
	services := map[string]*grpc.ClientConn{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		service, with, _ := strings.Cut(lines.Text(), " ")
		conn := services[service]
		if conn == nil {
			creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
			if err != nil {
				return err
			}
			conn, err = grpc.NewClient("xds:///"+service, grpc.WithTransportCredentials(creds))
			if err != nil {
				return err
			}
			services[service] = conn
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		for pair := range strings.FieldsSeq(with) {
			key, value, _ := strings.Cut(pair, "=")
			ctx = metadata.AppendToOutgoingContext(ctx, key, value)
		}
		var server peer.Peer
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&server), grpc.WaitForReady(true))
		cancel()
		answer := fmt.Sprint("error: ", err)
		if err == nil {
			answer = server.Addr.String()
			if info, ok := server.AuthInfo.(credentials.TLSInfo); ok {
				answer += fmt.Sprint(" as ", info.State.PeerCertificates[0].URIs)
			}
		}
		if _, err := fmt.Fprintln(out, strings.ReplaceAll(answer, "\n", " ")); err != nil {
			return err
		}
	}
	return lines.Err()
}

// serve runs a server whose listener the control plane configures.
func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	s, err := xds.NewGRPCServer(grpc.Creds(creds))
	if err != nil {
		return err
	}
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	return s.Serve(listener)
}

// proxyless is an agent without Envoy, for applications that speak xDS themselves.
type proxyless struct {
	dir, address string
	agent        *exec.Cmd
	output       *testenv.Buffer
}

func newProxyless(t testing.TB, c *controlPlane, address string) *proxyless {
	t.Helper()
	p := &proxyless{dir: t.TempDir(), address: address, output: &testenv.Buffer{}}
	cert, key := c.pki.Workload(t, "spiffe://cluster.local/ns/books/sa/shop")
	for name, text := range map[string][]byte{
		"var/run/secrets/istio/root-cert.pem":                             c.pki.PEM(),
		"var/run/secrets/tokens/istio-token":                              []byte(token),
		"var/run/secrets/workload-spiffe-credentials/cert-chain.pem":      cert,
		"var/run/secrets/workload-spiffe-credentials/key.pem":             key,
		"var/run/secrets/workload-spiffe-credentials/root-cert.pem":       c.pki.PEM(),
		"var/run/secrets/workload-spiffe-credentials/ca-certificates.pem": c.pki.PEM(),
	} {
		path := filepath.Join(p.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	p.agent = exec.Command(testenv.Bin(t, "pilotfish-agent"), "proxy", "sidecar")
	p.agent.Dir = p.dir
	p.agent.Env = []string{"HOME=" + p.dir, "DISABLE_ENVOY=true", "INSTANCE_IP=" + address, "PROXY_BIND_ADDRESS=" + address,
		"POD_NAME=shop", "POD_NAMESPACE=books", "SERVICE_ACCOUNT=shop", fmt.Sprintf("PROXY_CONFIG={discoveryAddress: %q}", c.address)}
	p.agent.Stdout, p.agent.Stderr = p.output, p.output
	start(t, p.agent)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent said:\n%s", p.output)
		}
	})
	testenv.Eventually(t, "the agent is ready", func() error {
		_, err := p.get("/healthz/ready")
		return err
	})
	return p
}

func (p *proxyless) get(path string) ([]byte, error) {
	response, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + p.address + ":15020" + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", response.StatusCode, body)
	}
	return body, err
}

// start runs a program until the test ends.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() { // the kernel kills the child with the thread that started it, so that thread has to stay
		defer close(ended)
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
}

// application runs this binary in a role, with nothing but the bootstrap that the agent wrote.
func (p *proxyless) application(t testing.TB, as string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{role + "=" + as, "GRPC_XDS_BOOTSTRAP=" + p.dir + "/etc/istio/proxy/grpc-bootstrap.json"}
	output := &testenv.Buffer{}
	cmd.Stderr = output
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s", as, output)
		}
	})
	return cmd
}

// caller is a client application: each call of it makes one, to a service.
func (p *proxyless) caller(t testing.TB) func(service string) string {
	t.Helper()
	cmd := p.application(t, "client")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe() // ends when the client does
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	t.Cleanup(func() { _ = in.Close() })
	answers := bufio.NewReader(out)
	return func(service string) string {
		t.Helper()
		_, err := fmt.Fprintln(in, service)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(answer)
	}
}

func checkAnswer(t testing.TB, call func(string) string, service, address string) {
	t.Helper()
	testenv.Eventually(t, address+" answers for "+service, func() error {
		if got := call(service); got != address {
			return errors.New(got)
		}
		return nil
	})
}

// listen is a server at the address.
func listen(t testing.TB, address string, options ...grpc.ServerOption) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
}

// TestGRPCApplicationsAreConfiguredThroughTheAgent: they speak xDS themselves.
func TestGRPCApplicationsAreConfiguredThroughTheAgent(t *testing.T) {
	t.Parallel()
	const first, second = "127.157.1.2:7001", "127.157.1.3:7001"
	plane := newControlPlane(t, "127.157.1.1:15012")
	plane.set(t, "1", first)
	agent := newProxyless(t, plane, "127.157.1.4")
	listen(t, first)
	listen(t, second)
	call := agent.caller(t)
	checkAnswer(t, call, shop, first)

	plane.set(t, "2", second)
	checkAnswer(t, call, shop, second)

	plane.server.Stop() // their last configuration remains in use
	for range 50 {
		if got := call(shop); got != second {
			t.Fatalf("without a control plane: %s", got)
		}
	}
	plane.set(t, "3", first)
	plane.start(t)
	checkAnswer(t, call, shop, first)

	// The agent reports the cluster that gRPC rejects. The other resources remain in use.
	plane.set(t, "4", first, &clusterv3.Cluster{Name: "shop", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}})
	testenv.Eventually(t, "the rejection is on the books", func() error {
		var books struct {
			Types []struct {
				TypeURL string
				Nacks   int
			}
		}
		body, err := agent.get("/debug/xdsz")
		if err == nil {
			err = json.Unmarshal(body, &books)
		}
		if err != nil {
			return err
		}
		for _, kind := range books.Types {
			if strings.HasSuffix(kind.TypeURL, ".Cluster") && kind.Nacks > 0 {
				return nil
			}
		}
		return fmt.Errorf("%s", body)
	})
	if got := call(shop); got != first {
		t.Errorf("after a rejection: %s", got)
	}
}

// TestGRPCApplicationsDoNotDisturbEachOther: a server and clients of several services have streams of their own.
func TestGRPCApplicationsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	const address = "127.157.2.2:7001"
	plane := newControlPlane(t, "127.157.2.1:15012")
	plane.set(t, "1", address)
	agent := newProxyless(t, plane, "127.157.2.4")
	start(t, agent.application(t, "server "+address))
	one, other := agent.caller(t), agent.caller(t)
	for range 20 {
		for _, call := range []func(string) string{one, other} {
			for _, service := range []string{shop, otherShop} {
				checkAnswer(t, call, service, address)
			}
		}
	}
	if log := agent.output.String(); strings.Contains(log, "displace") || strings.Contains(log, "\twarn\t") {
		t.Errorf("the streams disturb each other:\n%s", log)
	}
}
