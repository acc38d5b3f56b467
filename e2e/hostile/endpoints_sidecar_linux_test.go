package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// sidecarEndpointAttacks are attempts to reach a sidecar's own sockets and ports through the ingress listeners of a Sidecar.
var sidecarEndpointAttacks = []attack{{
	name:     "a tenant's Sidecar leads clients of a workload to the sockets and ports of its proxy",
	position: tenant,
	limit:    "no connection: 503 for each, and a finding with the field and the remedy",
	service:  "the sidecar serves the application's port, and a socket that the platform allows",
	run:      attackByDefaultEndpoints,
}, {
	name:     "a neighbor uses the HTTP proxy of a sidecar without capture",
	position: neighbor,
	limit:    "no connection: the proxy calls neither the application nor others for the neighbor, with the workload's identity",
	service:  "the application uses the HTTP proxy on loopback",
	run:      useForeignHTTPProxy,
}}

// ingressListener is a listener of the tenant's Sidecar, without capture.
type ingressListener struct {
	port               int
	protocol, endpoint string
	remedy             string // of the finding; empty for a legitimate endpoint
}

const (
	agentSocketRemedy = "use the application's address or socket"
	unixRemedy        = "allow the path with --allow-unix-endpoints"
	portRemedy        = "use the address and the port of the application"
)

// ingressListeners are the listeners by name.
func ingressListeners(edgeDir string) map[string]ingressListener {
	return map[string]ingressListener{
		"sds":           {9001, "GRPC", "unix://" + edgeDir + "/pod/var/run/secrets/workload-spiffe-uds/socket", agentSocketRemedy},
		"xds":           {9002, "GRPC", "unix://" + edgeDir + "/pod/etc/istio/proxy/XDS", agentSocketRemedy},
		"dots":          {9003, "GRPC", "unix://" + edgeDir + "/apps/../pod/etc/istio/proxy/XDS", "write an absolute path"},
		"unlisted":      {9010, "HTTP", "unix://" + edgeDir + "/other/app.sock", unixRemedy},
		"admin":         {9004, "HTTP", "127.0.0.1:15000", portRemedy},
		"admin-mapped":  {9005, "HTTP", "'[::ffff:127.0.0.1]:15000'", portRemedy},
		"admin-address": {9006, "HTTP", "0.0.0.0:15000", portRemedy},
		"status":        {9007, "HTTP", "127.0.0.1:15020", portRemedy},
		"application":   {9008, "HTTP", "127.0.0.1:8080", ""},
		"socket":        {9009, "HTTP", "unix://" + edgeDir + "/apps/app.sock", ""},
	}
}

func sidecarDocument(edgeDir string) string {
	var document strings.Builder
	document.WriteString(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: pod, namespace: tenant}
spec:
  workloadSelector: {labels: {app: tenant}}
  ingress:
`)
	for name, l := range ingressListeners(edgeDir) {
		fmt.Fprintf(&document, "  - {port: {number: %d, protocol: %s, name: %s}, bind: %s, captureMode: NONE, defaultEndpoint: %s}\n",
			l.port, l.protocol, name, edgePod, l.endpoint)
	}
	// Without a defaultEndpoint, the endpoint is the same port on loopback.
	fmt.Fprintf(&document, "  - {port: {number: 15000, protocol: HTTP, name: default}, bind: %s, captureMode: NONE}\n", edgePod)
	return document.String()
}

func attackByDefaultEndpoints(t *testing.T) {
	e := startEdgePlane(t, sidecarDocument)
	for _, folder := range []string{"apps", "other"} {
		e.write(folder+"/.keep", "")
	}
	e.serve("unix", e.path("apps/app.sock"), "the socket")
	e.serve("unix", e.path("other/app.sock"), "a socket of the platform")
	e.serve("tcp", "127.0.0.1:8080", "the application")
	e.startProxy("sidecar", "pod", "tenant", edgePod)
	e.requireIngress(t, "application", "the application")
	e.requireIngress(t, "socket", "the socket")

	t.Run("the workload's key is read", func(t *testing.T) { stealWorkloadKey(t, e.grpcIngress(t, "sds")) })
	for _, name := range []string{"xds", "dots"} {
		t.Run("the configuration is read by "+name, func(t *testing.T) { readXDS(t, e.grpcIngress(t, name), clusterType, "*") })
	}
	for _, name := range []string{"admin", "admin-mapped", "admin-address"} {
		t.Run("the admin interface is read by "+name, func(t *testing.T) { e.requireIngressRefused(t, e.ingressAddress(name), "/config_dump") })
	}
	t.Run("a socket is reached that the platform does not allow", func(t *testing.T) { e.requireIngressRefused(t, e.ingressAddress("unlisted"), "/") })
	t.Run("the admin interface is read by the port", func(t *testing.T) { e.requireIngressRefused(t, edgePod+":15000", "/config_dump") })
	t.Run("the agent's page is read", func(t *testing.T) { e.requireIngressRefused(t, e.ingressAddress("status"), "/stats/prometheus") })
	e.requireIngress(t, "application", "the application")
	e.requireIngress(t, "socket", "the socket")
	t.Run("each endpoint has a finding", e.requireIngressFindings)
}

func (e *sharedEdge) ingressAddress(name string) string {
	return fmt.Sprintf("%s:%d", edgePod, ingressListeners(e.dir)[name].port)
}

// getIngress requests a page of the workload's address.
func (e *sharedEdge) getIngress(ctx context.Context, address, path string) (code int, body string, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return e.dial(ctx, address) }}
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return response.StatusCode, string(text), err
}

// requireIngress waits until a listener serves what is legitimate.
func (e *sharedEdge) requireIngress(t *testing.T, name, want string) {
	t.Helper()
	testenv.Eventually(t, name+" is served", func() error {
		code, body, err := e.getIngress(t.Context(), e.ingressAddress(name), "/")
		if err == nil && (code != http.StatusOK || body != want) {
			err = fmt.Errorf("%d %q", code, body)
		}
		return err
	})
}

// requireIngressRefused fails the test unless the sidecar has no endpoint for a listener.
func (e *sharedEdge) requireIngressRefused(t *testing.T, address, path string) {
	t.Helper()
	code, body, err := e.getIngress(t.Context(), address, path)
	if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(body, "no healthy upstream") {
		t.Errorf("%s%s is answered with %d: %.200s %v", address, path, code, body, err)
	}
}

// grpcIngress is a client's connection to a listener.
func (e *sharedEdge) grpcIngress(t *testing.T, name string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+e.ingressAddress(name), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return e.dial(ctx, address) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// requireIngressFindings fails the test unless the log and analyze name the field, the value and the remedy of each
// refused endpoint, and of no legitimate one.
func (e *sharedEdge) requireIngressFindings(t *testing.T) {
	report, err := exec.Command(testenv.Bin(t, "pilotfish"), "analyze", e.path("config"), "-o", "lines", "--allow-unix-endpoints", e.path("apps")).CombinedOutput()
	if err == nil {
		t.Error("analyze finds nothing")
	}
	for name, l := range ingressListeners(e.dir) {
		endpoint := strings.Trim(l.endpoint, "'")
		if l.remedy == "" {
			if findingAt("defaultEndpoint", endpoint, "", string(report)) == nil {
				t.Errorf("the legitimate endpoint of %s has a finding", name)
			}
			continue
		}
		if err := findingAt("defaultEndpoint", endpoint, l.remedy, string(report)); err != nil {
			t.Errorf("analyze: %v\n%s", err, report)
		}
		testenv.Eventually(t, "the log has the finding of "+name, func() error { return findingAt("defaultEndpoint", endpoint, l.remedy, e.log.String()) })
	}
	if err := findingAt("port.number", "127.0.0.1:15000", portRemedy, string(report)); err != nil {
		t.Errorf("analyze: %v\n%s", err, report)
	}
}

// findingAt returns an error unless a line reports a refused endpoint with the field of a listener, the value and the remedy.
func findingAt(field, endpoint, remedy, lines string) error {
	for line := range strings.Lines(lines) {
		if strings.Contains(line, "PF0112") && strings.Contains(line, "Sidecar tenant/pod: spec.ingress[") && strings.Contains(line, "]."+field+":") &&
			strings.Contains(line, endpoint) && strings.Contains(line, remedy) {
			return nil
		}
	}
	return fmt.Errorf("no line with PF0112 has the field %s, the value %q and the remedy %q", field, endpoint, remedy)
}

func useForeignHTTPProxy(t *testing.T) {
	e := startEdgePlane(t, func(string) string { return "" })
	e.serve("tcp", "127.0.0.1:8080", "the application")
	e.serve("tcp", edgeShop+":8080", "the shop")
	e.startProxy("sidecar", "pod", "tenant", edgePod, "ISTIO_META_INTERCEPTION_MODE=NONE")
	call := func(proxy, host string) (body string, err error) {
		conn, err := e.dial(t.Context(), proxy+":15080")
		if err != nil {
			return "", err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", host)
		text, err := io.ReadAll(conn)
		return string(text), err
	}
	testenv.Eventually(t, "the application uses the proxy", func() error {
		body, err := call("127.0.0.1", edgeShop+":8080")
		if err == nil && !strings.HasSuffix(body, "the shop") {
			err = fmt.Errorf("%q", body)
		}
		return err
	})
	for _, host := range []string{"127.0.0.1:8080", edgeShop + ":8080"} {
		if body, err := call(edgePod, host); err == nil {
			t.Errorf("a neighbor's request to %s is answered: %q", host, body)
		}
	}
}
