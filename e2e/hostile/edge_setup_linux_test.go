package hostile

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// The addresses of an edge's network.
const (
	edgePlane   = "10.251.0.1"
	edgeGateway = "10.251.0.2"
	edgeShop    = "10.251.0.3"
	edgePod     = "10.251.0.4"
)

// sharedEdge is a control plane and a shared gateway with a public site's key, in a network of their own. Tenants write documents
// in the namespace tenant; outsiders reach the gateway's port 8443.
type sharedEdge struct {
	t       testing.TB
	ns      *testns.Namespace
	dir     string
	hosts   string // the gateway's /etc/hosts; empty for the machine's
	plane   string // address of the control plane
	sites   *testpki.Authority
	log     *testenv.Buffer // of the control plane
	gateway <-chan struct{} // closed when the agent has ended
	proxy   *testenv.Buffer // output of the agent, with Envoy's access log
}

const edgeDocuments = `apiVersion: v1
kind: Secret
metadata: {name: site, namespace: edge}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: ` + edgeGateway + `, serviceAccount: edge, labels: {app: edge}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {app: edge}
  servers: [{port: {number: 8443, name: https, protocol: HTTPS}, hosts: ["*/*"], tls: {mode: SIMPLE, credentialName: site}}]
`

// startEdge starts an edge with documents of a tenant, whose sockets below the edge's folder apps are allowed. The function
// documents gets the edge's folder. The gateway's /etc/hosts has the lines of hosts, if there are any.
func startEdge(t testing.TB, documents func(dir string) string, hosts ...string) *sharedEdge {
	t.Helper()
	e := startEdgePlane(t, documents, hosts...)
	e.gateway = e.startProxy("router", "gw", "edge", edgeGateway)
	return e
}

// startEdgePlane is like startEdge, without the gateway.
func startEdgePlane(t testing.TB, documents func(dir string) string, hosts ...string) *sharedEdge {
	t.Helper()
	e := newEdge(t, documents, hosts...)
	e.startPlane()
	return e
}

// newEdge is like startEdgePlane, without the control plane.
func newEdge(t testing.TB, documents func(dir string) string, hosts ...string) *sharedEdge {
	t.Helper()
	e := &sharedEdge{t: t, ns: testns.New(t), sites: testpki.New(t, "sites"), plane: edgePlane}
	var err error
	if e.dir, err = os.MkdirTemp("/tmp", "pf-edge-"); err != nil { // short, since sockets are in it
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(e.dir) })
	e.ns.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		for _, address := range []string{edgePlane, edgeGateway, edgeShop, edgePod} {
			ip := &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}
			err = errors.Join(err, h.AddrAdd(lo, &netlink.Addr{IPNet: ip}))
		}
		return err
	})
	cert, key := e.sites.Server(t, "*.tenant.example")
	encode := base64.StdEncoding.EncodeToString
	e.write("config/edge.yaml", fmt.Sprintf(edgeDocuments, encode(cert), encode(key)))
	e.write("config/tenant.yaml", documents(e.dir))
	if len(hosts) > 0 {
		e.hosts = e.path("hosts")
		e.write("hosts", strings.Join(hosts, "\n")+"\n")
	}
	e.write("mesh.yaml", "accessLogFile: /dev/stdout\n")
	return e
}

func (e *sharedEdge) path(name string) string { return filepath.Join(e.dir, name) }

func (e *sharedEdge) write(name, text string) {
	e.t.Helper()
	file := e.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		e.t.Fatal(err)
	}
}

// startPlane starts the control plane at the edge's address, with further flags.
func (e *sharedEdge) startPlane(flags ...string) {
	e.t.Helper()
	cmd := exec.Command(testenv.Bin(e.t, "pilotfish"), append([]string{"control-plane", "--config-dir", e.path("config"), "--state-dir", e.path("state"),
		"--address", e.plane, "--port", "-2", "--token-port", "-2", "--allow-unix-endpoints", e.path("apps"), "--mesh-config", e.path("mesh.yaml")}, flags...)...)
	e.log, _ = e.ns.Start(e.t, cmd)
	testenv.Eventually(e.t, "the control plane serves", func() error {
		conn, err := e.dial(e.t.Context(), e.plane+":15012")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// startProxy starts an agent with a real Envoy as Kubernetes does, with the ports and sockets of the contract. Its root is
// a folder of the edge. Its pod, namespace, account and label app have the given name. It returns a channel that is closed when
// the agent has ended.
func (e *sharedEdge) startProxy(role, folder, name, address string, env ...string) <-chan struct{} {
	e.t.Helper()
	authority, err := ca.Load(e.path("state"), ca.Options{MustExist: true})
	if err != nil {
		e.t.Fatal(err)
	}
	token, err := authority.IssueToken(name, name, time.Hour)
	if err != nil {
		e.t.Fatal(err)
	}
	for path, text := range map[string]string{
		"var/run/secrets/tokens/istio-token": token, "var/run/secrets/istio/root-cert.pem": string(authority.RootPEM()),
		"etc/istio/pod/labels": fmt.Sprintf("app=%q\n", name), "etc/istio/pod/annotations": "", "var/run/secrets/workload-spiffe-uds/.keep": "",
	} {
		e.write(folder+"/"+path, text)
	}
	proxyConfig, err := json.Marshal(map[string]any{"discoveryAddress": e.plane + ":15012", "concurrency": 1})
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.Command(testenv.Bin(e.t, "pilotfish-agent"), "proxy", role)
	if e.hosts != "" {
		const mount = `mount --bind "$0" /etc/hosts && exec "$@"`
		cmd = exec.Command("unshare", append([]string{"--mount", "sh", "-c", mount, e.hosts}, cmd.Args...)...)
	}
	cmd.Dir = e.path(folder)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "INSTANCE_IP=" + address, "POD_NAME=" + name, "POD_NAMESPACE=" + name, "SERVICE_ACCOUNT=" + name,
		"PROXY_CONFIG=" + string(proxyConfig), "CA_ADDR=" + e.plane + ":15012", "ECC_SIGNATURE_ALGORITHM=ECDSA", "ENVOY_PATH=" + testenv.Envoy(e.t),
	}
	cmd.Env = append(cmd.Env, env...)
	var ended <-chan struct{}
	e.proxy, ended = e.ns.Start(e.t, cmd)
	return ended
}

// dial connects from within the network.
func (e *sharedEdge) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = e.ns.Run(func() error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// serve answers requests to an address within the network, or to a socket in the edge's folder.
func (e *sharedEdge) serve(network, address, answer string) {
	e.t.Helper()
	var listener net.Listener
	err := e.ns.Run(func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, answer)
	})}
	go func() { _ = server.Serve(listener) }() // until it is closed
	e.t.Cleanup(func() { _ = server.Close() })
}

// request sends an outsider's request to a host through the gateway, once the gateway has a route for it.
func (e *sharedEdge) request(t testing.TB, method, url string) (code int, body string) {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: e.sites.Pool()},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx, edgeGateway+":8443") },
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport}
	testenv.Eventually(t, "the gateway answers", func() error {
		select {
		case <-e.gateway:
			t.Fatal("the gateway has ended")
		default:
		}
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		code, body = resp.StatusCode, string(text)
		if err == nil && code == http.StatusNotFound {
			return errors.New("there is no route yet")
		}
		return err
	})
	return code, body
}

// grpc is an outsider's connection to a host through the gateway.
func (e *sharedEdge) grpc(t testing.TB, host string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: e.sites.Pool(), ServerName: host})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return e.dial(ctx, edgeGateway+":8443") }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tenantRoute is a tenant's rule that binds a host to the shared gateway.
func tenantRoute(name, destination string) string {
	return strings.NewReplacer("NAME", name, "DESTINATION", destination).Replace(`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: tenant}
spec:
  hosts: [NAME.tenant.example]
  gateways: [edge/edge]
  http: [{route: [{destination: {host: DESTINATION, port: {number: 80}}}]}]
`)
}

// tenantEntry is a tenant's service with one endpoint, and its route.
func tenantEntry(name, protocol, resolution, endpoint string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: tenant}
spec:
  hosts: [%[1]s.tenant.internal]
  resolution: %[3]s
  ports: [{number: 80, name: port, protocol: %[2]s}]
  endpoints: [%[4]s]
`, name, protocol, resolution, endpoint) + tenantRoute(name, name+".tenant.internal")
}
