package translate_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// defaultTimeout is generous because only failing tests wait this long.
const defaultTimeout = 2 * time.Minute

// eventually polls until check returns "". After defaultTimeout it fails with the last result of check.
func eventually(t testing.TB, check func() string) {
	t.Helper()
	deadline := time.Now().Add(defaultTimeout)
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(complaint)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// pushState is the state that the control plane pushes: a snapshot, and optionally a proxy for which all clients
// receive the configuration.
type pushState struct {
	snap *snapshot.Snapshot
	as   *translate.Proxy
}

// testControlPlane combines the real discovery server with package translate.
type testControlPlane struct {
	t      testing.TB
	server *xds.Server
	addr   string
	ca     *authority
	// envoyDir is the working directory of Envoys; if it is empty, that of the test.
	envoyDir string
}

func newTestControlPlane(t testing.TB) *testControlPlane {
	t.Helper()
	server, err := xds.NewServer(xds.Config{Source: source{}})
	if err != nil {
		t.Fatal(err)
	}
	p := &testControlPlane{t: t, server: server, ca: newAuthority(t)}
	p.addr = serveGRPC(t, func(g *grpc.Server) { server.RegisterTo(g) })
	return p
}

func serveGRPC(t testing.TB, register func(*grpc.Server)) string {
	t.Helper()
	return serveGRPCAt(t, "tcp", "127.0.0.1:0", register)
}

func serveGRPCAt(t testing.TB, network, address string, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(xds.ServerOptions()...)
	register(g)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return l.Addr().String()
}

func (p *testControlPlane) push(s pushState, change snapshot.Change) { p.server.Push(s, change) }

// inSync waits until every client has accepted all resources, and fails after a NACK.
func (p *testControlPlane) inSync(clients int) {
	p.t.Helper()
	eventually(p.t, func() string {
		wrong, pending := p.state(clients)
		if wrong != "" {
			p.t.Fatal(wrong)
		}
		return pending
	})
}

// state returns the resources that clients have rejected, and those that they have not accepted yet.
func (p *testControlPlane) state(clients int) (wrong, pending string) {
	all := p.server.Clients()
	if len(all) != clients {
		return "", fmt.Sprintf("%d clients are connected, want %d", len(all), clients)
	}
	for _, c := range all {
		for _, ty := range c.Types {
			if ty.Rejected != nil {
				return fmt.Sprintf("%s rejected %s: %s", c.ID, ty.TypeURL, ty.Rejected.Reason), ""
			}
			if ty.Error != "" {
				return fmt.Sprintf("%s: %s: %s", c.ID, ty.TypeURL, ty.Error), ""
			}
		}
		if !c.InSync || len(c.Types) < 2 {
			return "", fmt.Sprintf("%s is not in sync: %+v", c.ID, c.Types)
		}
	}
	return "", ""
}

type source struct{}

func (source) Connect(_ context.Context, node *corev3.Node, peer xds.Peer) (xds.Proxy, error) {
	p, err := translate.ParseProxy(node, peer.Identity)
	if err == nil {
		p.Authenticated = true // as if the client had connected to the authenticated port
	}
	return client{p}, err
}

type client struct{ p *translate.Proxy }

func (client) Hooks() xds.Hooks { return xds.Hooks{} }

func (c client) resolve(s xds.State) (*snapshot.Snapshot, *translate.Proxy) {
	st := s.(pushState)
	if st.as != nil {
		return st.snap, st.as
	}
	return st.snap, c.p
}

func (c client) ComputePushScope(s xds.State, change xds.Change) xds.PushScope {
	snap, p := c.resolve(s)
	return translate.AffectedResources(snap, p, change.(snapshot.Change))
}

func (c client) Generate(s xds.State, typeURL string, _ bool, names []string) ([]*xds.Resource, error) {
	snap, p := c.resolve(s)
	return generate(snap, p, typeURL, names)
}

func generate(snap *snapshot.Snapshot, p *translate.Proxy, typeURL string, names []string) ([]*xds.Resource, error) {
	switch typeURL {
	case xds.ClusterType:
		return translate.Clusters(snap, p)
	case xds.EndpointType:
		return translate.Endpoints(snap, p, names)
	case xds.ListenerType:
		return translate.Listeners(snap, p)
	case xds.RouteType:
		return translate.Routes(snap, p, names)
	case xds.VirtualHostType:
		return translate.VirtualHosts(snap, p, names)
	case xds.ExtensionType:
		return translate.Extensions(snap, p, names)
	case xds.SecretType:
		return translate.Secrets(snap, p, names)
	case xds.NameTableType:
		table, err := translate.NameTable(snap, p)
		return []*xds.Resource{table}, err
	}
	return nil, nil
}

// authority issues the certificates of a test's mesh.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}}
	a.key, a.pem, _ = a.sign(a.cert, a.cert, nil)
	block, _ := pem.Decode(a.pem)
	var err error
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		a.t.Fatal(err)
	}
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// issue returns a certificate for a SPIFFE ID and, for the gateway, a host name.
func (a *authority) issue(id string) (certPEM, keyPEM []byte) {
	uri, err := url.Parse(id)
	if err != nil {
		a.t.Fatal(err)
	}
	_, certPEM, keyPEM = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), URIs: []*url.URL{uri}, DNSNames: []string{"shop.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}, a.cert, a.key)
	return certPEM, keyPEM
}

// secrets serves the certificates of one proxy, as its agent would.
type secrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	ca *authority
	id string
	// named: the identity of each certificate ends with the name of its secret.
	named bool
}

func (s *secrets) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if req.GetResponseNonce() != "" || len(req.GetResourceNames()) == 0 {
			continue
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "1", Nonce: "1"}
		for _, name := range req.GetResourceNames() {
			secret, err := anypb.New(s.secret(name))
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, secret)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (s *secrets) secret(name string) *tlsv3.Secret {
	if name == "ROOTCA" || strings.HasPrefix(name, "file-root:") || strings.HasSuffix(name, "-cacert") {
		context := &tlsv3.CertificateValidationContext{TrustedCa: inline(s.ca.pem)}
		if _, file, listed := strings.Cut(name, "~crl:"); listed {
			if lists, err := os.ReadFile(file); err == nil {
				context.Crl, context.OnlyVerifyLeafCertCrl = inline(lists), true
			}
		}
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}}
	}
	id := s.id
	if s.named {
		id += url.PathEscape(name)
	}
	cert, key := s.ca.issue(id)
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(cert), PrivateKey: inline(key)},
	}}
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

// envoy is a running Envoy that is connected to a test control plane.
type envoy struct {
	t     testing.TB
	admin string
	log   *syncBuffer
}

const bootstrapTemplate = `{
 "node": %s,
 "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
 "dynamic_resources": {
  "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]},
  "cds_config": {"ads": {}, "resource_api_version": "V3"}, "lds_config": {"ads": {}, "resource_api_version": "V3"}},
 "layered_runtime": {"layers": [{"name": "agent", "static_layer": {"re2.max_program_size.error_level": "32768"}}]},
 "static_resources": {"clusters": [%s, %s]}
}`

func staticCluster(name, addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return fmt.Sprintf(`{"name": %q, "type": "STATIC", "connect_timeout": "1s",
  "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
   "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
  "load_assignment": {"cluster_name": %q, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": %q, "port_value": %s}}}}]}]}}`,
		name, name, host, port)
}

// startEnvoy starts an Envoy for a proxy with the identity id.
func (p *testControlPlane) startEnvoy(version, description, id string) *envoy {
	t := p.t
	t.Helper()
	sds := serveGRPC(t, func(g *grpc.Server) { secretv3.RegisterSecretDiscoveryServiceServer(g, &secrets{ca: p.ca, id: id}) })
	nodeJSON, err := protojson.Marshal(node(t, description))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bootstrap := filepath.Join(dir, "bootstrap.json")
	text := fmt.Sprintf(bootstrapTemplate, nodeJSON, staticCluster("xds-grpc", p.addr), staticCluster("sds-grpc", sds))
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &envoy{t: t, log: &syncBuffer{}}
	adminFile := filepath.Join(dir, "admin")
	cmd := exec.Command(testenv.EnvoyOf(t, version), "-c", bootstrap, "--disable-hot-restart", "--concurrency", "1",
		"--admin-address-path", adminFile, "-l", "warning", "--drain-time-s", "45", "--drain-strategy", "immediate")
	cmd.Stdout, cmd.Stderr, cmd.Dir = e.log, e.log, p.envoyDir
	dieWithTest(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Envoy %s, %s:\n%s", version, description, e.log)
		}
	})
	eventually(t, func() string {
		data, err := os.ReadFile(adminFile)
		if err != nil || len(data) == 0 {
			return fmt.Sprintf("Envoy %s does not start: %v\n%s", version, err, e.log)
		}
		e.admin = string(data)
		return ""
	})
	return e
}

// hasSettled waits until no resource is warming, and fails if Envoy could not create a listener.
func (e *envoy) hasSettled() {
	e.t.Helper()
	eventually(e.t, func() string {
		wrong, pending := e.state()
		if wrong != "" {
			e.t.Fatalf("%s\n%s", wrong, e.log)
		}
		return pending
	})
}

// state returns failed and warming resources.
func (e *envoy) state() (wrong, pending string) {
	stats := e.get("/stats?filter=warming|create_failure|update_rejected&usedonly")
	for _, line := range strings.Split(stats, "\n") {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || value == "0" {
			continue
		}
		if strings.Contains(name, "create_failure") || strings.Contains(name, "rejected") {
			return line, ""
		}
		pending = line
	}
	return "", pending
}

func (e *envoy) get(path string) string {
	resp, err := http.Get("http://" + e.admin + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
