package translate_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// forEachEnvoyVersion runs a traffic test with each Envoy version, on a separate network.
func forEachEnvoyVersion(t *testing.T, network int, run func(t *testing.T, version string, network int)) {
	t.Helper()
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			run(t, version, network+i)
		})
	}
}

// testEnv is a mesh with real Envoys.
type testEnv struct {
	*testMesh
	plane   *testControlPlane
	version string
	network int
	envoys  int
}

func newTestEnv(t *testing.T, version string, network int, documents ...string) *testEnv {
	return newTestEnvWithConfig(t, nil, version, network, documents...)
}

// newTestEnvWithConfig is newTestEnv with a mesh configuration.
func newTestEnvWithConfig(t *testing.T, mesh *meshconfig.MeshConfig, version string, network int, documents ...string) *testEnv {
	w := &testEnv{version: version, network: network, plane: newTestControlPlane(t)}
	for i, d := range documents {
		documents[i] = w.expandNetwork(d)
	}
	w.testMesh = newTestMesh(t, mesh, documents...)
	w.plane.push(pushState{snap: w.snap}, snapshot.Change{Full: true})
	return w
}

// expandNetwork replaces NET by the addresses of the environment's network. A number above 255 contains a part of the
// third octet: 173004 is 127.173.40 to 127.173.49.
func (w *testEnv) expandNetwork(s string) string {
	if w.network > 255 {
		return regexp.MustCompile(`NET\.(\d)\.`).ReplaceAllString(s, fmt.Sprintf("127.%d.%d$1.", w.network/1000, w.network%1000))
	}
	return strings.ReplaceAll(s, "NET.", fmt.Sprintf("127.%d.", w.network))
}

// proxy starts the Envoy of a proxy of a service account "namespace/account".
func (w *testEnv) proxy(description, account string) *envoy {
	w.t.Helper()
	namespace, sa, _ := strings.Cut(account, "/")
	e := w.plane.startEnvoy(w.version, w.expandNetwork(description), snapshot.SPIFFEID("cluster.local", namespace, sa))
	w.envoys++
	w.plane.inSync(w.envoys)
	e.hasSettled()
	return e
}

// change applies a document and waits until all proxies have it.
func (w *testEnv) change(document string) {
	w.t.Helper()
	w.pushed(w.apply(w.expandNetwork(document)))
}

func (w *testEnv) remove(key config.Key) {
	w.t.Helper()
	w.pushed(w.delete(key))
}

func (w *testEnv) pushed(change snapshot.Change) {
	w.t.Helper()
	w.plane.push(pushState{snap: w.snap}, change)
	w.plane.inSync(w.envoys)
}

// serveApp starts a workload whose responses describe the request.
func (w *testEnv) serveApp(address, name string, handler http.HandlerFunc) {
	w.t.Helper()
	l := w.listen(address)
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if handler != nil {
			handler(rw, r)
			return
		}
		fmt.Fprintf(rw, "%s %s %s host=%s xfcc=%s", name, r.Proto, r.URL.Path, r.Host, r.Header.Get("X-Forwarded-Client-Cert"))
	})}
	go func() { _ = server.Serve(l) }()
	w.t.Cleanup(func() { _ = server.Close() })
}

func (w *testEnv) listen(address string) net.Listener {
	w.t.Helper()
	l, err := net.Listen("tcp", w.expandNetwork(address))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

// httpResult is the response or error of a request.
type httpResult struct {
	code int
	body string
	err  error
}

func (a httpResult) String() string { return fmt.Sprintf("%d %q %v", a.code, a.body, a.err) }

// request sends a request through a sidecar's HTTP proxy, or directly if proxy is "".
func (w *testEnv) request(proxy, target string, headers ...string) httpResult {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	if proxy != "" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: w.expandNetwork(proxy)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.expandNetwork(target), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, "=")
		req.Header.Set(k, v)
		if k == "Host" {
			req.Host = v
		}
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return httpResult{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return httpResult{resp.StatusCode, string(body) + resp.Header.Get("Location"), err}
}

// expect polls until a result has the code and contains the text. Polling is necessary because worker threads apply an
// accepted change a little later.
func (w *testEnv) expect(code int, text string, ask func() httpResult) {
	w.t.Helper()
	eventually(w.t, func() string {
		if a := ask(); a.code != code || !strings.Contains(a.body, text) {
			return fmt.Sprintf("the result is %v, want code %d and text %q", a, code, text)
		}
		return ""
	})
}

// https sends a request to the gateway and verifies its certificate.
func (w *testEnv) https(host string, certs []tls.Certificate) httpResult {
	return w.httpsAs(host, host, certs)
}

// httpsAs is like https, with different names in the SNI and the request.
func (w *testEnv) httpsAs(sni, host string, certs []tls.Certificate) httpResult {
	return w.httpsAt("NET.1.1:8443", sni, host, certs)
}

// httpsAt is like httpsAs, for another address.
func (w *testEnv) httpsAt(address, sni, host string, certs []tls.Certificate) httpResult {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.plane.ca.pem)
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: sni, Certificates: certs},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, w.expandNetwork(address))
		},
	}
	if sni != "shop.example.com" { // the server's certificate has only that name
		transport.TLSClientConfig.InsecureSkipVerify = true
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("https://" + host + "/x")
	if err != nil {
		return httpResult{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return httpResult{resp.StatusCode, string(body), err}
}

func (w *testEnv) firstLine(address string) httpResult {
	c, err := net.DialTimeout("tcp", w.expandNetwork(address), 5*time.Second)
	if err != nil {
		return httpResult{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return httpResult{err: err}
	}
	return httpResult{200, line, nil}
}

func (w *testEnv) upgrade(host, message string) httpResult {
	c, err := net.DialTimeout("tcp", w.expandNetwork(clientPort), 5*time.Second)
	if err != nil {
		return httpResult{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(c, "GET http://%s/ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGVzdA==\r\n\r\n", host, host)
	reader := bufio.NewReader(c)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return httpResult{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return httpResult{code: resp.StatusCode}
	}
	_, _ = io.WriteString(c, message)
	line, err := reader.ReadString('\n')
	return httpResult{resp.StatusCode, line, err}
}
