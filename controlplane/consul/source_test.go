package consul

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

var onlyWeb = map[string]string{"web": "[" + anInstance("web-1", "10.0.0.2") + "]"}

func TestLostConsulLeavesServicesInForce(t *testing.T) {
	f := startFake(t)
	f.setServices(11, onlyWeb)
	metrics := NewMetrics(prometheus.NewRegistry())
	s, _ := run(t, Config{Address: f.URL, Metrics: metrics}, true)
	want := map[string]string{"web.service.consul": "10.0.0.2"}
	await(t, s, "the service is known", want)
	f.setAnswer(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return true
	})
	awaitHealth(t, s, "the agent's datacenter: Consul responds 500: No cluster leader; its last known services stay in force")
	await(t, s, "the service is still known", want)
	if got := testutil.ToFloat64(metrics.connected.WithLabelValues(localDatacenter)); got != 0 {
		t.Errorf("the metric of the connection is %v", got)
	}
	f.setAnswer(nil)
	f.setServices(12, map[string]string{"web": "[" + anInstance("web-1", "10.0.0.3") + "]"})
	await(t, s, "the change arrives", map[string]string{"web.service.consul": "10.0.0.3"})
	awaitHealth(t, s, "")
	if connected, instances := testutil.ToFloat64(metrics.connected.WithLabelValues(localDatacenter)), testutil.ToFloat64(metrics.instances.WithLabelValues(localDatacenter, passing)); connected != 1 || instances != 1 {
		t.Errorf("the metrics report connected %v and %v instances", connected, instances)
	}
}

func TestProxiesWaitForTheFirstResponses(t *testing.T) {
	f := startFake(t)
	f.setServices(11, map[string]string{"web": "[" + anInstance("web-1", "10.0.0.2") + "]", "api": "[" + anInstance("api-1", "10.0.0.3") + "]"})
	var ready atomic.Bool
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/health/service/api" || ready.Load() {
			return false
		}
		http.Error(w, "rpc error", http.StatusInternalServerError)
		return true
	})
	s, _ := run(t, Config{Address: f.URL}, false)
	await(t, s, "one service is known", map[string]string{"web.service.consul": "10.0.0.2"})
	awaitHealth(t, s, "the instances of 1 services are not known yet, so proxies receive no configuration")
	select {
	case <-s.Synced():
		t.Fatal("the source is synced without one of the services")
	default:
	}
	awaitProblem(t, s, "ServiceEntry consul/api: the agent's datacenter: the service cannot be read: Consul responds 500: rpc error")
	ready.Store(true)
	<-s.Synced()
	await(t, s, "both services are known", map[string]string{"web.service.consul": "10.0.0.2", "api.service.consul": "10.0.0.3"})
	awaitHealth(t, s, "")
}

// Consul's documentation requires that a client starts again without an index if the index decreases.
func TestDecreasedIndexIsReset(t *testing.T) {
	f := startFake(t)
	f.setServices(1000, onlyWeb)
	s, _ := run(t, Config{Address: f.URL}, true)
	await(t, s, "the service is known", map[string]string{"web.service.consul": "10.0.0.2"})
	before := len(f.listQueries())
	f.setServices(5, map[string]string{"web": "[" + anInstance("web-1", "10.0.0.9") + "]"})
	await(t, s, "the change is known", map[string]string{"web.service.consul": "10.0.0.9"})
	testenv.Eventually(t, "both queries start again without an index, and block at the new one", func() error {
		seen := strings.Join(f.listQueries()[before:], "\n") + "\n"
		for _, want := range []string{"services\n", "web\n", "services?index=5&", "web?index=5&"} {
			if !strings.Contains(seen, want) {
				return fmt.Errorf("no query with %q in\n%s", want, seen)
			}
		}
		return nil
	})
}

func TestIndexForTheNextQuery(t *testing.T) {
	for _, c := range []struct {
		previous uint64
		header   string
		want     uint64
		wantErr  bool
	}{{0, "7", 7, false}, {7, "7", 7, false}, {7, "8", 8, false}, {7, "3", 0, false}, {0, "0", 1, false}, {1, "0", 0, false}, {0, "", 0, true}, {0, "-1", 0, true}} {
		got, err := nextIndex(c.previous, http.Header{indexHeader: {c.header}})
		if got != c.want || (err != nil) != c.wantErr {
			t.Errorf("after %d, header %q: %d, %v", c.previous, c.header, got, err)
		}
	}
}

// Consul omits the objects that a token may not read. The source does not interpret this as their removal.
func TestEmptyResponseOfAnInsufficientTokenRemovesNothing(t *testing.T) {
	f := startFake(t)
	f.setServices(11, onlyWeb)
	s, _ := run(t, Config{Address: f.URL}, true)
	want := map[string]string{"web.service.consul": "10.0.0.2"}
	await(t, s, "the service is known", want)
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set(filteredHeader, "true")
		w.Header().Set(indexHeader, "12")
		_, _ = w.Write([]byte("{}"))
		return r.URL.Path == "/v1/catalog/services"
	})
	awaitHealth(t, s, "the token may not read it: Consul requires service:read and node:read; its last known services stay in force")
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set(filteredHeader, "true")
		if r.URL.Path != "/v1/health/service/web" {
			return false
		}
		w.Header().Set(indexHeader, "13")
		_, _ = w.Write([]byte("[]"))
		return true
	})
	awaitProblem(t, s, "the service cannot be read: the token may not read it")
	awaitProblem(t, s, "Consul hides services that the token may not read")
	await(t, s, "the service is still known", want)
}

func TestLimitsOfResponses(t *testing.T) {
	f := startFake(t)
	big := "[" + strings.TrimSuffix(strings.Repeat(anInstance("x", "10.0.0.4")+",", maxInstances+1), ",") + "]"
	f.setServices(11, map[string]string{"web": onlyWeb["web"], "big": big, "huge": "[" + strings.Repeat(" ", 2<<20) + "]"})
	s, _ := run(t, Config{Address: f.URL, minServiceRetry: time.Millisecond, maxResponse: 2 << 20}, false)
	awaitProblem(t, s, "ServiceEntry consul/big: the agent's datacenter: the service cannot be read: it has 5001 instances, of which at most 5000 are supported")
	awaitProblem(t, s, "ServiceEntry consul/huge: the agent's datacenter: the service cannot be read: the response has more than 2097152 bytes")
	await(t, s, "the other service is known", map[string]string{"web.service.consul": "10.0.0.2"})
	<-s.Synced() // a service that cannot be read does not block the mesh
}

// An agent of Consul allows 200 connections for each client.
func TestManyServicesDoNotExhaustTheConnections(t *testing.T) {
	f := startFake(t)
	services, want := map[string]string{}, map[string]string{}
	for i := range 3 * maxWatches {
		name := fmt.Sprintf("s-%d", i)
		services[name] = "[" + anInstance(name, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)) + "]"
		want[name+".service.consul"] = fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
	}
	f.setServices(11, services)
	s, _ := run(t, Config{Address: f.URL, pollInterval: 200 * time.Millisecond}, true)
	await(t, s, "all services are known", want)
	testenv.Eventually(t, "the permitted number of queries blocks", func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.blocked != maxWatches || f.maxBlocked != maxWatches {
			return fmt.Errorf("%d queries block, at most %d", f.blocked, f.maxBlocked)
		}
		return nil
	})
	services["s-0"], want["s-0.service.consul"] = "["+anInstance("new", "10.2.0.1")+"]", "10.2.0.1"
	last := fmt.Sprintf("s-%d", len(services)-1)
	services[last], want[last+".service.consul"] = "["+anInstance("new", "10.2.0.2")+"]", "10.2.0.2"
	f.setServices(12, services)
	await(t, s, "changes of services with and without a blocking query arrive", want)
}

// Over HTTP/2, all queries share a connection, so each service has a blocking query.
func TestQueriesShareTLSConnections(t *testing.T) {
	authority := testpki.New(t, "consul")
	f := newFake(t, func(s *httptest.Server) {
		s.TLS = authority.ServerConfig(t, "server.dc1.consul")
		s.EnableHTTP2 = true
		s.StartTLS()
	})
	services := map[string]string{}
	for i := range maxWatches + 20 {
		services[fmt.Sprintf("s-%d", i)] = "[" + anInstance("a", "10.0.0.2") + "]"
	}
	f.setServices(11, services)
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := run(t, Config{Address: f.URL, TLS: dial.TLS{RootFile: root, ServerName: "server.dc1.consul"}}, true)
	testenv.Eventually(t, "all queries block", func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.blocked != len(services) {
			return fmt.Errorf("%d of %d queries block", f.blocked, len(services))
		}
		return nil
	})
	if got := len(s.List(config.ServiceEntry)); got != len(services) {
		t.Errorf("%d services are known", got)
	}

	wrong, _ := run(t, Config{Address: f.URL, TLS: dial.TLS{RootFile: root}}, false)
	awaitHealth(t, wrong, "TLS: tls: failed to verify certificate")
}

func TestTokenIsReadForEachQueryAndNotSentToRedirects(t *testing.T) {
	f := startFake(t)
	f.setServices(11, onlyWeb)
	var tokens, redirected atomic.Value
	other := newFake(t, (*httptest.Server).Start)
	other.setAnswer(func(_ http.ResponseWriter, r *http.Request) bool {
		redirected.Store(r.URL.String())
		return false
	})
	var redirects atomic.Bool
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) bool {
		tokens.Store(r.Header.Get(tokenHeader))
		if redirects.Load() {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	s, _ := run(t, Config{Address: f.URL, TokenFile: file}, true)
	if got := tokens.Load(); got != "first" {
		t.Fatalf("the token is %q", got)
	}
	write("second")
	f.setServices(12, onlyWeb)
	testenv.Eventually(t, "the new token is sent", func() error {
		if got := tokens.Load(); got != "second" {
			return fmt.Errorf("the token is %q", got)
		}
		return nil
	})
	redirects.Store(true)
	f.setServices(13, onlyWeb)
	awaitHealth(t, s, "Consul responds 307")
	if got := redirected.Load(); got != nil {
		t.Errorf("the source followed the redirect to %v", got)
	}
}

func TestUnusableServersAreExplained(t *testing.T) {
	for _, c := range []struct {
		name, want string
		answer     http.HandlerFunc
	}{
		{"another server", "the response to /v1/catalog/services is not the JSON of Consul's API", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }},
		{"another API", "the server at this address is not Consul", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }},
		{"unknown token", "Consul responds 403: ACL not found (check the token in --consul-token-file)", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "ACL not found", http.StatusForbidden) }},
		{"too many connections", "increase limits.http_max_conns_per_client of the Consul agent", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Your IP is issuing too many", http.StatusTooManyRequests)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFake(t)
			f.setAnswer(func(w http.ResponseWriter, r *http.Request) bool {
				c.answer(w, r)
				return true
			})
			s, _ := run(t, Config{Address: f.URL}, false)
			awaitHealth(t, s, c.want)
		})
	}
	s, _ := run(t, Config{Address: "unix://" + filepath.Join(t.TempDir(), "consul.sock")}, false)
	awaitHealth(t, s, "no such file or directory")
	awaitProblem(t, s, "[PF0013]")
}

func TestInvalidSettingsAreRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Address: "ftp://a"}, `--consul-address "ftp://a": not an address of Consul`},
		{Config{Address: "http://a/ui"}, "it has more than scheme, host and port"},
		{Config{Address: "unix://run/consul"}, "no absolute path"},
		{Config{Address: "http://consul.example:8500", TokenFile: "t"}, "--consul-token-file: the connection to http://consul.example:8500 is not encrypted"},
		{Config{Address: "127.0.0.1:8500", TLS: dial.TLS{RootFile: "r"}}, "need an https:// address"},
		{Config{Address: "https://a", TLS: dial.TLS{CertFile: "r"}}, "--consul-client-cert and --consul-client-key need each other"},
		{Config{Address: "a", Domain: "a_b"}, `--consul-domain "a_b" is not a domain`},
		{Config{Address: "a", Namespace: "A"}, `--consul-namespace "A"`},
		{Config{Address: "a", Datacenters: []string{"a b"}}, `"a b" is not the name of a datacenter`},
		{Config{Address: "a", Datacenters: []string{"a", "a"}}, `"a" is listed twice`},
	} {
		if err := c.cfg.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.cfg, err, c.want)
		}
	}
	for _, cfg := range []Config{{Address: "127.0.0.1:8500", TokenFile: "t"}, {Address: "https://a", TokenFile: "t"}, {Address: "unix:///run/consul.sock", TokenFile: "t"}, {Address: "http://[::1]:8500", Datacenters: []string{"a", "b"}, Domain: "example.com."}} {
		if err := cfg.Check(); err != nil {
			t.Error(err)
		}
	}
	for address, want := range map[string]string{"consul": "http://consul:8500", "https://consul": "https://consul:8501", "10.0.0.1:80": "http://10.0.0.1:80"} {
		if got, err := parseAddress(address); err != nil || got.base != *must(url.Parse(want)) {
			t.Errorf("%s is %v, %v", address, got, err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
