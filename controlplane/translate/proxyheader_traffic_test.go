package translate_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
)

// TestSidecarsDoNotParsePROXYHeaders confirms the effects that a finding describes: HTTP and mutual TLS connections
// with a header fail, and with plaintext TCP the workload receives the header.
func TestSidecarsDoNotParsePROXYHeaders(t *testing.T) {
	forEachEnvoyVersion(t, 196001, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.serveEcho("NET.2.2:3306")
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		requests := func() httpResult { return w.request(clientPort, serverURL) }
		bytes := func() httpResult { return w.sendLine("NET.1.16:3306", "hello\n") }
		w.expect(200, "server", requests)
		w.expect(200, "hello", bytes)

		const header = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: header, namespace: back}\nspec: {host: server, trafficPolicy: {proxyProtocol: {}}}\n"
		isReported := func() bool {
			return strings.Contains(fmt.Sprint(analysis.Check(w.snap)), "the workloads of server.back.svc.cluster.local have sidecars, which expect no PROXY protocol header: calls to it fail")
		}
		w.change(header)
		w.expectClosed(requests)
		w.expectClosed(bytes)
		if !isReported() {
			t.Errorf("the finding is missing in %v", analysis.Check(w.snap))
		}

		w.change("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: back}\nspec: {mtls: {mode: DISABLE}}\n")
		w.expect(200, "PROXY TCP4 ", bytes)
		w.expectClosed(requests)
		if !isReported() {
			t.Errorf("the finding for HTTP is missing in %v", analysis.Check(w.snap))
		}
		w.change(strings.Replace(pair[:strings.Index(pair, "---")], "{name: http, port: 80, targetPort: 8080}, ", "", 1))
		w.expect(200, "PROXY TCP4 ", bytes)
		if isReported() {
			t.Errorf("the finding is reported for a working configuration: %v", analysis.Check(w.snap))
		}
	})
}

// serveEcho starts a server that returns the first line that it receives.
func (w *testEnv) serveEcho(address string) {
	w.t.Helper()
	l := w.listen(address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				line, _ := bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, line)
			}()
		}
	}()
}

// sendLine sends a line and returns the response line.
func (w *testEnv) sendLine(address, line string) httpResult {
	c, err := net.DialTimeout("tcp", w.expandNetwork(address), 5*time.Second)
	if err != nil {
		return httpResult{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, line); err != nil {
		return httpResult{err: err}
	}
	back, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return httpResult{err: err}
	}
	return httpResult{200, back, nil}
}

// expectClosed polls until requests fail.
func (w *testEnv) expectClosed(ask func() httpResult) {
	w.t.Helper()
	eventually(w.t, func() string {
		if a := ask(); a.code == 200 && (strings.Contains(a.body, "hello") || strings.Contains(a.body, "server")) {
			return fmt.Sprintf("answered %v", a)
		}
		return ""
	})
}
