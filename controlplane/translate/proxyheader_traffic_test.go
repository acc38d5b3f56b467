package translate_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestSidecarsTakeTheHeaderOfThePROXYProtocolForSomethingElse is what the finding about it says: it is none of requests and of
// mutual TLS, and only bytes that nobody encrypts bring it to the workload.
func TestSidecarsTakeTheHeaderOfThePROXYProtocolForSomethingElse(t *testing.T) {
	bothEnvoys(t, 196001, func(t *testing.T, version string, network int) {
		w := newWorld(t, version, network, pair)
		w.app("NET.2.2:8080", "server", nil)
		w.repeat("NET.2.2:3306")
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		requests := func() answer { return w.through(clientPort, serverURL) }
		bytes := func() answer { return w.saying("NET.1.16:3306", "hello\n") }
		w.expect(200, "server", requests)
		w.expect(200, "hello", bytes)

		const header = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: header, namespace: back}\nspec: {host: server, trafficPolicy: {proxyProtocol: {}}}\n"
		told := func() bool {
			return strings.Contains(fmt.Sprint(w.snap.Problems()), "sidecars serve server.back.svc.cluster.local, and expect no header of the PROXY protocol: calls to it fail")
		}
		w.change(header)
		w.fails(requests)
		w.fails(bytes)
		if !told() {
			t.Errorf("nobody says so: %v", w.snap.Problems())
		}

		w.change("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: back}\nspec: {mtls: {mode: DISABLE}}\n")
		w.expect(200, "PROXY TCP4 ", bytes)
		w.fails(requests)
		if !told() {
			t.Errorf("nobody says so of requests: %v", w.snap.Problems())
		}
		w.change(strings.Replace(pair[:strings.Index(pair, "---")], "{name: http, port: 80, targetPort: 8080}, ", "", 1))
		w.expect(200, "PROXY TCP4 ", bytes)
		if told() {
			t.Errorf("it is said of what works: %v", w.snap.Problems())
		}
	})
}

// repeat is a server that says the first line again that it hears.
func (w *world) repeat(address string) {
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

// saying is the line that comes back for one.
func (w *world) saying(address, line string) answer {
	c, err := net.DialTimeout("tcp", w.text(address), 5*time.Second)
	if err != nil {
		return answer{err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, line); err != nil {
		return answer{err: err}
	}
	back, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return answer{err: err}
	}
	return answer{200, back, nil}
}

// fails polls until there is no answer that is worth something.
func (w *world) fails(ask func() answer) {
	w.t.Helper()
	eventually(w.t, func() string {
		if a := ask(); a.code == 200 && (strings.Contains(a.body, "hello") || strings.Contains(a.body, "server")) {
			return fmt.Sprintf("answered %v", a)
		}
		return ""
	})
}
