package status

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestIdleConnectionsExcludeNoClient(t *testing.T) {
	s, url := run(t, Config{})
	address := strings.TrimPrefix(url, "http://")
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for i := range maxConnections + 100 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		if i%2 == 0 { // a connection with one request that stays open
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = io.WriteString(c, "GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n")
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("connection %d: %v %v", i, answer, err)
			}
		}
	}
	if a := call(t, "GET", url+"/healthz/ready"); a.code != http.StatusOK {
		t.Errorf("a new client with all these connections open: status %d", a.code)
	}
	s.connLimit.mu.Lock()
	defer s.connLimit.mu.Unlock()
	if n := len(s.connLimit.conns); n > maxConnections {
		t.Errorf("%d connections are open, want at most %d", n, maxConnections)
	}
}

func TestBusyConnectionIsNotClosed(t *testing.T) {
	pipe := func() net.Conn { c, _ := net.Pipe(); return c }
	c := &connLimiter{max: 2}
	busy, idle, third, fourth := pipe(), pipe(), pipe(), pipe()
	c.onState(busy, http.StateNew)
	c.onState(busy, http.StateActive)
	c.onState(idle, http.StateNew)
	c.onState(third, http.StateNew)
	if _, there := c.conns[idle]; there || len(c.conns) != 2 {
		t.Error("the idle connection is still open")
	}
	c.onState(third, http.StateActive)
	c.onState(fourth, http.StateNew)
	if _, err := fourth.Write([]byte("x")); err != io.ErrClosedPipe {
		t.Errorf("the connection above the limit: %v, want it closed", err)
	}
	for _, conn := range []net.Conn{busy, third, fourth} {
		c.onState(conn, http.StateClosed)
	}
	if len(c.conns) != 0 {
		t.Errorf("the limiter still counts %d closed connections", len(c.conns))
	}
}

func TestProfilesAreBounded(t *testing.T) {
	_, url := run(t, Config{})
	for path, want := range map[string]int{
		"/debug/pprof/": 200, "/debug/pprof/goroutine?debug=1": 200, "/debug/pprof/profile?seconds=3600": 400,
		"/debug/pprof/trace?seconds=1e9": 400, "/debug/pprof/heap?seconds=-1": 400, "/debug/pprof/trace?seconds=x": 400,
	} {
		if a := call(t, "GET", url+path); a.code != want {
			t.Errorf("%s: %d, want %d", path, a.code, want)
		}
	}
}

func TestOneProfileAtATime(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	h := profileLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-release
	}))
	_, url := serveAlone(t, h)
	first := make(chan int)
	go func() { first <- codeOf(t, url+"/debug/pprof/heap") }()
	<-entered
	if code := codeOf(t, url+"/debug/pprof/heap"); code != http.StatusTooManyRequests {
		t.Errorf("a second one meanwhile: %d", code)
	}
	close(release)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
}

// serveAlone serves a handler until the test ends.
func serveAlone(t *testing.T, h http.Handler) (net.Addr, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.104.17.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return l.Addr(), fmt.Sprintf("http://%s", l.Addr())
}
