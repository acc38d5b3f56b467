package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is a timeout that expires only in tests of timeouts, or when a test fails.
const soon = 20 * time.Second

// listen opens a listener at an address that only this package's tests use.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.106.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func addressOf(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

// application runs an HTTP server until the test ends.
func application(t testing.TB, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := &httptest.Server{Listener: listen(t), Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return addressOf(s.Listener)
}

func httpSpec(at netip.AddrPort, path string) Spec {
	return Spec{HTTP: &HTTP{Host: at.Addr().String(), Port: at.Port(), Path: path}, Timeout: soon}
}

func prober(t testing.TB, c Config) *Prober {
	p := New(c)
	t.Cleanup(p.Close)
	return p
}

func TestHTTPResponsesAreJudgedAsByAKubelet(t *testing.T) {
	at := application(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		case "/portless":
			http.Redirect(w, r, "http://127.106.1.1/", http.StatusFound)
		case "/around":
			http.Redirect(w, r, "/around", http.StatusFound)
		case "/nine":
			hops := len(r.URL.Query().Get("n"))
			if hops < 9 {
				http.Redirect(w, r, "/nine?n="+strings.Repeat("x", hops+1), http.StatusFound)
			}
		case "/nowhere":
			w.WriteHeader(http.StatusFound)
		case "/file":
			w.Header().Set("Location", "file://127.106.1.1/etc/passwd")
			w.WriteHeader(http.StatusFound)
		case "/notmodified":
			w.WriteHeader(http.StatusNotModified)
		case "/nocontent":
			w.WriteHeader(http.StatusNoContent)
		case "/query":
			_, _ = io.WriteString(w, r.URL.RawQuery)
		case "/long":
			_, _ = io.WriteString(w, strings.Repeat("x", maxBody+1))
		case "/broken":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		case "/101":
			conn, _, _ := http.NewResponseController(w).Hijack()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			_ = conn.Close()
		default:
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, r.URL.Path)
		}
	})
	for _, c := range []struct {
		path string
		code int // 0 for an error
		body string
		err  string
	}{
		{"/x", 418, "/x", ""},
		{"x", 418, "/x", ""},
		{"", 418, "/", ""},
		{"/a b", 418, "/a b", ""},
		{"/%zz", 418, "/%zz", ""},
		{"//x#y", 418, "//x", ""},
		{"/query?a=b&c", 200, "a=b&c", ""},
		{"/nocontent", 204, "", ""},
		{"/notmodified", 200, "", ""},
		{"/away", 200, "", ""},
		{"/nowhere", 200, "", ""},
		{"/nine", 200, "", ""},
		{"/around", 0, "", "stopped after 10 redirects"},
		{"/portless", 0, "", "127.106.1.1:80: connect"},
		{"/file", 0, "", "unsupported protocol scheme"},
		{"/long", 200, strings.Repeat("x", maxBody), ""},
		{"/broken", 0, "", "reading the response body"},
		{"/101", 0, "", "101"},
	} {
		t.Run(c.path, func(t *testing.T) {
			got, err := prober(t, Config{}).HTTP(t.Context(), httpSpec(at, c.path), Request{})
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one that contains %q", err, c.err)
				}
			case err != nil || got.Code != c.code || string(got.Body) != c.body:
				t.Errorf("%d %.40q %v, want %d %.40q", got.Code, got.Body, err, c.code, c.body)
			}
		})
	}
}

func TestRedirectThatIsRefusedIsAFailure(t *testing.T) {
	at := application(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusSeeOther) })
	p := prober(t, Config{Refuse: refuseAll})
	if _, err := p.HTTP(t.Context(), httpSpec(at, "/"), Request{}); !errors.Is(err, errRefused) {
		t.Errorf("error %v", err)
	}
}

func TestRequestHasTheCallersHeadersAndHostButNotItsConnection(t *testing.T) {
	at := application(t, func(w http.ResponseWriter, r *http.Request) {
		keys := []string{"X-Mine", "X-Spec", "User-Agent", "Accept-Encoding", "Connection", "X-Hop", "Te", "Upgrade", "Expect"}
		_, _ = fmt.Fprintf(w, "host=%s from=%s", r.Host, strings.Split(r.RemoteAddr, ":")[0])
		for _, k := range keys {
			if v, ok := r.Header[k]; ok {
				_, _ = fmt.Fprintf(w, " %s=%s", k, strings.Join(v, "|"))
			}
		}
	})
	spec := httpSpec(at, "/")
	spec.HTTP.Header = http.Header{"x-spec": {"s"}, "X-Mine": {"overridden"}}
	hostile := http.Header{"X-Mine": {"1", "2"}, "Connection": {"x-hop, keep-alive"}, "X-Hop": {"h"}, "Te": {"trailers"},
		"Upgrade": {"h2c"}, "Expect": {"100-continue"}, "Transfer-Encoding": {"chunked"}, "Content-Length": {"5"}, "Accept-Encoding": {"gzip"}}
	for _, c := range []struct {
		name string
		r    Request
		want string
	}{
		{"nothing", Request{}, "host=" + at.String() + " from=127.0.0.6 X-Mine=overridden X-Spec=s User-Agent=istio-probe/1.0 Connection=close"},
		{"an empty header", Request{Header: http.Header{}}, "host=" + at.String() + " from=127.0.0.6 X-Mine=overridden X-Spec=s Connection=close"},
		{"all", Request{Header: hostile, Host: "web.example"}, "host=web.example from=127.0.0.6 X-Mine=1|2 X-Spec=s Accept-Encoding=gzip Connection=close"},
		{"user agent", Request{Header: http.Header{"User-Agent": {"kube-probe/1.34"}}}, "host=" + at.String() + " from=127.0.0.6 X-Mine=overridden X-Spec=s User-Agent=kube-probe/1.34 Connection=close"},
	} {
		got, err := prober(t, Config{}).HTTP(t.Context(), spec, c.r)
		if err != nil || string(got.Body) != c.want {
			t.Errorf("%s:\n got %s %v\nwant %s", c.name, got.Body, err, c.want)
		}
	}
	spec.HTTP.Header = http.Header{"Host": {"named.example"}}
	if got, err := prober(t, Config{}).HTTP(t.Context(), spec, Request{}); err != nil || !strings.HasPrefix(string(got.Body), "host=named.example ") {
		t.Errorf("a Host header of the probe does not set the host: %s %v", got.Body, err)
	}
	if hostile.Get("Upgrade") == "" {
		t.Error("the caller's http.Header was changed")
	}
}

func TestHTTPSIsNotVerifiedAndHTTP2IsOffered(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	_ = s.Listener.Close()
	s.Listener = listen(t)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	spec := httpSpec(addressOf(s.Listener), "/")
	spec.HTTP.TLS = true
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{HTTP2: true}, "HTTP/2.0"},
		{Config{HTTP2: false}, "HTTP/1.1"},
		{Config{HTTP2: true, KeepAlive: true}, "HTTP/2.0"},
	} {
		p := prober(t, c.config)
		for range 2 {
			if got, err := p.HTTP(t.Context(), spec, Request{Header: http.Header{"Connection": {"Upgrade"}}}); err != nil || string(got.Body) != c.want {
				t.Errorf("%+v: %s %v, want %s", c.config, got.Body, err, c.want)
			}
		}
	}
	spec.HTTP.TLS = false
	if got, err := prober(t, Config{HTTP2: true}).HTTP(t.Context(), spec, Request{}); err != nil || got.Code != 400 {
		t.Errorf("plain HTTP to a port with TLS: %d %v", got.Code, err)
	}
}

func TestConnectionsAreReusedWithKeepAliveOnly(t *testing.T) {
	for _, keep := range []bool{false, true} {
		var seen []string
		at := application(t, func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.RemoteAddr) })
		p := prober(t, Config{KeepAlive: keep})
		for range 3 {
			if err := p.Check(t.Context(), httpSpec(at, "/")); err != nil {
				t.Fatal(err)
			}
		}
		if same := seen[0] == seen[1] && seen[1] == seen[2]; same != keep {
			t.Errorf("KeepAlive %v: connections from %v", keep, seen)
		}
	}
}

func TestCheckTakesFrom200To399ForWell(t *testing.T) {
	at := application(t, func(w http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &code)
		w.WriteHeader(code)
	})
	for code, well := range map[int]bool{200: true, 204: true, 302: true, 399: true, 400: false, 404: false, 500: false, 503: false} {
		err := prober(t, Config{}).Check(t.Context(), httpSpec(at, fmt.Sprintf("/%d", code)))
		if (err == nil) != well {
			t.Errorf("%d: %v", code, err)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprint(code)) {
			t.Errorf("the error does not contain the status %d: %v", code, err)
		}
	}
	if err := prober(t, Config{}).Check(t.Context(), Spec{}); err == nil {
		t.Error("a probe without a check succeeded")
	}
}

func TestTCPIsWellWhenThePortTakesConnections(t *testing.T) {
	l := listen(t)
	from := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		from <- conn.RemoteAddr().String()
		_ = conn.Close()
	}()
	at := addressOf(l)
	spec := Spec{TCP: &TCP{Host: at.Addr().String(), Port: at.Port()}, Timeout: soon}
	if err := prober(t, Config{}).Check(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if got := <-from; !strings.HasPrefix(got, "127.0.0.6:") {
		t.Errorf("the probe's source address is %s", got)
	}
	_ = l.Close()
	if err := prober(t, Config{}).Check(t.Context(), spec); err == nil || !strings.Contains(err.Error(), at.String()) {
		t.Errorf("closed port: %v", err)
	}
	spec.Timeout = 0
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller went away"))
	if err := prober(t, Config{}).Check(ctx, spec); err == nil || !strings.Contains(err.Error(), "went away") {
		t.Errorf("no timeout: %v", err)
	}
}

func TestLocalhostIsFoundInEitherFamily(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		spec := Spec{TCP: &TCP{Host: "localhost", Port: addressOf(l).Port()}, Timeout: soon}
		if err := prober(t, Config{}).Check(t.Context(), spec); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		_ = l.Close()
	}
}
