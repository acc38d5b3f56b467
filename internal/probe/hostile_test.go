package probe

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var errRefused = errors.New("refused")

func refuseAll(*url.URL) error { return errRefused }

// raw runs a TCP server that handles each connection with serve, and returns an HTTP probe of it.
func raw(t *testing.T, serve func(net.Conn)) Spec {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 4096))
				serve(conn)
			}()
		}
	}()
	return httpSpec(addressOf(l), "/")
}

// forever writes until the peer closes the connection, and counts the bytes.
func forever(conn net.Conn, what []byte, written *atomic.Int64) {
	for {
		n, err := conn.Write(what)
		written.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func TestHostileAnswersEndInTimeAndCostNothing(t *testing.T) {
	var written atomic.Int64
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	for _, c := range []struct {
		name    string
		serve   func(net.Conn)
		timeout time.Duration // timeout of the probe
		code    int
		err     string
	}{
		{"endless body", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			forever(conn, chunk, &written)
		}, 0, 200, ""},
		{"body of which only the length comes", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\nx")
			_, _ = conn.Read(make([]byte, 1))
		}, 50 * time.Millisecond, 0, "no response within 50ms"},
		{"endless header", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: ")
			forever(conn, chunk, &written)
		}, 0, 0, "header is longer"},
		{"endless headers", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			forever(conn, bytes.Repeat([]byte("X: y\r\n"), 1000), &written)
		}, 0, 0, "header is longer"},
		{"endless early hints", func(conn net.Conn) {
			forever(conn, bytes.Repeat([]byte("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), 100), &written)
		}, 0, 0, ""},
		{"endless chunk extension", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;")
			forever(conn, chunk, &written)
		}, 0, 0, "reading the response body"},
		{"no answer", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, 50 * time.Millisecond, 0, "no response within 50ms"},
		{"header byte by byte", func(conn net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 1000)) {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}, 50 * time.Millisecond, 0, "no response within 50ms"},
		{"end without an answer", func(net.Conn) {}, 0, 0, "EOF"},
		{"no HTTP", func(conn net.Conn) { _, _ = io.WriteString(conn, "SSH-2.0-x\r\n") }, 0, 0, "malformed"},
		{"a code that is none", func(conn net.Conn) { _, _ = io.WriteString(conn, "HTTP/1.1 099 X\r\n\r\n") }, 0, 0, "status 99"},
		{"a code above all", func(conn net.Conn) { _, _ = io.WriteString(conn, "HTTP/1.1 999 X\r\n\r\n") }, 0, 0, "999"},
	} {
		t.Run(c.name, func(t *testing.T) {
			written.Store(0)
			spec := raw(t, c.serve)
			if c.timeout > 0 {
				spec.Timeout = c.timeout
			}
			got, err := prober(t, Config{HTTP2: true}).HTTP(t.Context(), spec, Request{})
			switch {
			case c.code != 0 && (err != nil || got.Code != c.code || len(got.Body) > maxBody):
				t.Errorf("%d, %d bytes, %v", got.Code, len(got.Body), err)
			case c.code == 0 && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one that contains %q", err, c.err)
			}
		})
	}
}

func TestGzipBombIsNotUnpacked(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 32<<20))
	_ = z.Close()
	at := application(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	})
	got, err := prober(t, Config{}).HTTP(t.Context(), httpSpec(at, "/"), Request{Header: http.Header{"Accept-Encoding": {"gzip"}}})
	if err != nil || !bytes.Equal(got.Body, bomb.Bytes()[:maxBody]) {
		t.Errorf("%d bytes, %v", len(got.Body), err)
	}
}

func TestEndlessBodiesTakeNoMemoryOverHTTP2Either(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 64<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	_ = s.Listener.Close()
	s.Listener = listen(t)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	spec := httpSpec(addressOf(s.Listener), "/")
	spec.HTTP.TLS = true
	p := prober(t, Config{HTTP2: true, KeepAlive: true})
	ask := func() {
		if got, err := p.HTTP(t.Context(), spec, Request{}); err != nil || len(got.Body) != maxBody {
			t.Fatalf("%d bytes, %v", len(got.Body), err)
		}
	}
	ask()
	before := allocated()
	const asked = 50
	for range asked {
		ask()
	}
	// With net/http's defaults, HTTP/2 uses four megabytes per probe. Half of the measured memory belongs to the test's
	// server.
	if each := (allocated() - before) / asked; each > 512<<10 {
		t.Errorf("a probe takes %d KiB", each>>10)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func TestTLSThatNeverEndsItsHandshakeEndsWithTheTimeout(t *testing.T) {
	spec := raw(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	spec.HTTP.TLS, spec.Timeout = true, 50*time.Millisecond
	if _, err := prober(t, Config{HTTP2: true}).HTTP(t.Context(), spec, Request{}); err == nil || !strings.Contains(err.Error(), "no response within 50ms") {
		t.Errorf("error %v", err)
	}
	spec = raw(t, func(conn net.Conn) { _, _ = conn.Write(bytes.Repeat([]byte{0x16, 3, 3, 0xff, 0xff}, 1<<16)) })
	spec.HTTP.TLS = true
	_, err := prober(t, Config{HTTP2: true}).HTTP(t.Context(), spec, Request{})
	if header := (tls.RecordHeaderError{}); err == nil || errors.As(err, &header) && header.Msg == "" {
		t.Errorf("error %v", err)
	}
}
