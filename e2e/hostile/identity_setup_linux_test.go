package hostile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The types of resources that attackers request.
const (
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	secretType   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// callTimeout limits one call or stream. Only a failing test waits this long.
const callTimeout = 2 * time.Minute

// plane is a running `pilotfish control-plane`.
type plane struct {
	dir, secure, monitoring string
	output                  *testenv.Buffer
}

// startPlane runs the control plane on documents until the test ends.
func startPlane(t *testing.T, documents string, args ...string) *plane {
	t.Helper()
	p := &plane{dir: t.TempDir(), output: &testenv.Buffer{}}
	p.write(t, "config/mesh.yaml", documents)
	secure, monitoring := testenv.FreePort(t), testenv.FreePort(t)
	p.secure, p.monitoring = fmt.Sprintf("127.0.0.1:%d", secure), fmt.Sprintf("http://127.0.0.1:%d", monitoring)
	cmd := exec.Command(testenv.Bin(t, "pilotfish"), append([]string{"control-plane", "--config-dir", p.path("config"), "--state-dir", p.path("state"),
		"--port", "-2", "--token-port", "-2", "--secure-port", fmt.Sprint(secure), "--monitoring-port", fmt.Sprint(monitoring)}, args...)...)
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the control plane logged:\n%s", p.output)
		}
	})
	testenv.Eventually(t, "the control plane is ready", func() error {
		_, err := p.page("/ready")
		return err
	})
	return p
}

func (p *plane) path(name string) string { return filepath.Join(p.dir, name) }

// write replaces a file in one step.
func (p *plane) write(t *testing.T, name, text string) {
	t.Helper()
	file := p.path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(p.dir, "next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

func (p *plane) page(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(p.monitoring + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// token issues a token as the platform does.
func (p *plane) token(t *testing.T, namespace, account string, args ...string) string {
	t.Helper()
	token, err := exec.Command(testenv.Bin(t, "pilotfish"), append([]string{"token", "--state-dir", p.path("state"),
		"--namespace", namespace, "--service-account", account}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// dial connects over TLS, with a client certificate if there is one.
func (p *plane) dial(t *testing.T, certificates ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	roots, err := os.ReadFile(p.path("state/authority/root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	config := &tls.Config{RootCAs: pool, ServerName: "localhost"}
	// A client usually sends only certificates of the authorities that the server names. An attacker sends any.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(certificates) == 0 {
			return &tls.Certificate{}, nil
		}
		return &certificates[0], nil
	}
	conn, err := grpc.NewClient(p.secure, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// withToken returns a context whose calls send a token; an empty token sends none.
func withToken(t *testing.T, token string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	t.Cleanup(cancel)
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// node is what a proxy claims about itself.
type node struct {
	kind, address, namespace string
	metadata                 map[string]any
}

// proto returns the node as the first request of a stream has it.
func (n node) proto(t *testing.T) *corev3.Node {
	t.Helper()
	claims := map[string]any{"NAMESPACE": n.namespace}
	for key, value := range n.metadata {
		claims[key] = value
	}
	about, err := structpb.NewStruct(claims)
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%s~%s~one.%s~%s.svc.cluster.local", n.kind, n.address, n.namespace, n.namespace)
	return &corev3.Node{Id: id, Metadata: about}
}

// stream opens a delta stream for a node, and requests resources.
func (n node) stream(ctx context.Context, t *testing.T, conn *grpc.ClientConn, typeURL string, names ...string) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, *discoveryv3.DeltaDiscoveryResponse, error) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, nil, err
	}
	request := &discoveryv3.DeltaDiscoveryRequest{Node: n.proto(t), TypeUrl: typeURL, ResourceNamesSubscribe: names}
	if err := stream.Send(request); err != nil && err != io.EOF {
		return nil, nil, err
	}
	response, err := stream.Recv()
	return stream, response, err
}
