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

// bothEnvoys runs a test of traffic with each Envoy, on a network of its own: %N in addresses.
func bothEnvoys(t *testing.T, network int, run func(t *testing.T, version string, network int)) {
	t.Helper()
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			run(t, version, network+i)
		})
	}
}

// world is a mesh with Envoys in it.
type world struct {
	*testMesh
	plane   *plane
	version string
	network int
	envoys  int
}

func newWorld(t *testing.T, version string, network int, documents ...string) *world {
	return newWorldOf(t, nil, version, network, documents...)
}

// newWorldOf is newWorld with a configuration of the mesh.
func newWorldOf(t *testing.T, mesh *meshconfig.MeshConfig, version string, network int, documents ...string) *world {
	w := &world{version: version, network: network, plane: newPlane(t)}
	for i, d := range documents {
		documents[i] = w.text(d)
	}
	w.testMesh = newTestMesh(t, mesh, documents...)
	w.plane.push(state{snap: w.snap}, snapshot.Change{Full: true})
	return w
}

// text fills in the world's network. A number beyond 255 is a tenth of one: 173004 is 127.173.40 to 127.173.49.
func (w *world) text(s string) string {
	if w.network > 255 {
		return regexp.MustCompile(`NET\.(\d)\.`).ReplaceAllString(s, fmt.Sprintf("127.%d.%d$1.", w.network/1000, w.network%1000))
	}
	return strings.ReplaceAll(s, "NET", fmt.Sprintf("127.%d", w.network))
}

// proxy starts the Envoy of a proxy of a service account "namespace/account".
func (w *world) proxy(description, account string) *envoy {
	w.t.Helper()
	namespace, sa, _ := strings.Cut(account, "/")
	e := w.plane.startEnvoy(w.version, w.text(description), snapshot.SPIFFEID("cluster.local", namespace, sa))
	w.envoys++
	w.plane.inSync(w.envoys)
	e.settled()
	return e
}

// change applies a document and waits until all have it.
func (w *world) change(document string) {
	w.t.Helper()
	w.pushed(w.apply(w.text(document)))
}

func (w *world) remove(key config.Key) {
	w.t.Helper()
	w.pushed(w.delete(key))
}

func (w *world) pushed(change snapshot.Change) {
	w.t.Helper()
	w.plane.push(state{snap: w.snap}, change)
	w.plane.inSync(w.envoys)
}

// app is a workload that answers with what it was asked.
func (w *world) app(address, name string, handler http.HandlerFunc) {
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

func (w *world) listen(address string) net.Listener {
	w.t.Helper()
	l, err := net.Listen("tcp", w.text(address))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

// answer is what came back.
type answer struct {
	code int
	body string
	err  error
}

func (a answer) String() string { return fmt.Sprintf("%d %q %v", a.code, a.body, a.err) }

// through asks through a sidecar's HTTP proxy, or directly if proxy is "".
func (w *world) through(proxy, target string, headers ...string) answer {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	if proxy != "" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: w.text(proxy)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.text(target), nil)
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
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body) + resp.Header.Get("Location"), err}
}

// expect polls until an answer has the code and contains the text: a change that is in force everywhere may take a
// moment more to reach a worker thread.
func (w *world) expect(code int, text string, ask func() answer) {
	w.t.Helper()
	eventually(w.t, func() string {
		if a := ask(); a.code != code || !strings.Contains(a.body, text) {
			return fmt.Sprintf("%v instead of %d with %q", a, code, text)
		}
		return ""
	})
}

// https asks the gateway, and believes its certificate only.
func (w *world) https(host string, certs []tls.Certificate) answer {
	return w.httpsAs(host, host, certs)
}

// httpsAs is https with one name in the TLS handshake and another in the request.
func (w *world) httpsAs(sni, host string, certs []tls.Certificate) answer {
	return w.httpsAt("NET.1.1:8443", sni, host, certs)
}

// httpsAt is httpsAs at another address than the gateway's.
func (w *world) httpsAt(address, sni, host string, certs []tls.Certificate) answer {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.plane.ca.pem)
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: sni, Certificates: certs},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, w.text(address))
		},
	}
	if sni != "shop.example.com" { // the test's certificate is for that name
		transport.TLSClientConfig.InsecureSkipVerify = true
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("https://" + host + "/x")
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body), err}
}

func (w *world) firstLine(address string) answer {
	c, err := net.DialTimeout("tcp", w.text(address), 5*time.Second)
	if err != nil {
		return answer{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return answer{err: err}
	}
	return answer{200, line, nil}
}

func (w *world) upgrade(host, message string) answer {
	c, err := net.DialTimeout("tcp", w.text(clientPort), 5*time.Second)
	if err != nil {
		return answer{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(c, "GET http://%s/ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGVzdA==\r\n\r\n", host, host)
	reader := bufio.NewReader(c)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return answer{code: resp.StatusCode}
	}
	_, _ = io.WriteString(c, message)
	line, err := reader.ReadString('\n')
	return answer{resp.StatusCode, line, err}
}
