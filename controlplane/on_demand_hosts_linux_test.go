package controlplane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// virtualHosts returns the first domain of each virtual host that the Envoy has in its workload's outbound routes.
func (b *bookshop) virtualHosts() []string {
	b.t.Helper()
	text, err := b.envoy.Get("/config_dump?resource=dynamic_route_configs")
	if err != nil {
		b.t.Fatal(err)
	}
	var dump struct {
		Configs []struct {
			RouteConfig struct {
				Name         string
				VirtualHosts []struct{ Domains []string } `json:"virtual_hosts"`
			} `json:"route_config"`
		}
	}
	if err := json.Unmarshal([]byte(text), &dump); err != nil {
		b.t.Fatalf("%v: %s", err, text)
	}
	names := []string{}
	for _, c := range dump.Configs {
		for _, host := range c.RouteConfig.VirtualHosts {
			if c.RouteConfig.Name == "http_proxy" {
				names = append(names, host.Domains[0])
			}
		}
	}
	slices.Sort(names)
	return names
}

func (b *bookshop) expectHosts(want ...string) {
	b.t.Helper()
	if got := b.virtualHosts(); !slices.Equal(got, want) {
		b.t.Errorf("virtual hosts are %q, want %q", got, want)
	}
}

// service serves HTTP/1.1 and HTTP/2 at an address of the bookshop's network, and returns the documents of a service of
// that name with an HTTP/2 port.
func (b *bookshop) service(name string, last int) string {
	b.t.Helper()
	address := b.serve(name, last, 9080)
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {app: %[1]s}
  ports: [{name: http2, port: 9080}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %[1]s}
spec: {address: %[2]s, labels: {app: %[1]s}}
---
`, name, address)
}

// serve responds with a name and the size of the request body. It sends the headers before it reads the body.
func (b *bookshop) serve(name string, last, port int) (address string) {
	b.t.Helper()
	address = fmt.Sprintf("%s.%d", b.network, last)
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, port))
	if err != nil {
		b.t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Protocols: &http.Protocols{}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%s got %d", name, n)
	})}}
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	b.t.Cleanup(s.Close)
	return address
}

// request sends a request for a host to the sidecar, by HTTP/1.1 or HTTP/2.
func (b *bookshop) request(http2 bool, method, host string, body io.Reader) (string, error) {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		Protocols: protocols, DisableKeepAlives: !http2,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, b.network+".2:15080")
		},
	}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequest(method, "http://"+host+"/", body)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	if closer, ok := body.(io.Closer); ok { // the response has started; now the request may end
		_ = closer.Close()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return string(text), err
}

// endlessBody is a request body that ends only after the response has started, like that of a gRPC stream. Until then
// it has only a few bytes.
type endlessBody struct {
	io.Reader
	*io.PipeWriter
}

func newEndless() io.Reader {
	r, w := io.Pipe()
	return endlessBody{io.MultiReader(strings.NewReader("hello"), r), w}
}

func TestFirstRequestOfEachKindWaitsForItsHostAndSucceeds(t *testing.T) {
	b := newScopedBookshop(t, "127.172.103")
	kinds := map[string]struct {
		http2 bool
		body  func() io.Reader
		got   int
	}{
		"http1":        {false, func() io.Reader { return nil }, 0},
		"http1-body":   {false, func() io.Reader { return bytes.NewReader(make([]byte, 3<<20)) }, 3 << 20},
		"http1-stream": {false, newEndless, 5},
		"http2":        {true, func() io.Reader { return nil }, 0},
		"http2-body":   {true, func() io.Reader { return bytes.NewReader(make([]byte, 3<<20)) }, 3 << 20},
		"http2-stream": {true, newEndless, 5},
	}
	documents, last := "", 40
	for name := range kinds {
		documents += b.service(name, last)
		last++
	}
	before := len(b.plane.Status().Documents)
	write(t, filepath.Join(b.dir, "kinds.yaml"), documents)
	testenv.Eventually(t, "the services are known", func() error {
		if n := len(b.plane.Status().Documents); n != before+2*len(kinds) || b.plane.Status().Pending {
			return fmt.Errorf("%d documents", n)
		}
		return nil
	})
	b.awaitSync()
	b.expectHosts()
	for name, kind := range kinds {
		want := fmt.Sprintf("%s got %d", name, kind.got)
		if got, err := b.request(kind.http2, http.MethodPost, name+":9080", kind.body()); got != want || err != nil {
			t.Errorf("the first request is answered by %q, %v; want %q", got, err, want)
		}
	}
	if n := len(b.virtualHosts()); n != len(kinds) {
		t.Errorf("it holds %d virtual hosts, for %d that were called", n, len(kinds))
	}
}

// TestAliasResolvesToItsService: also if the alias was called before it existed, and after its target changes.
func TestAliasResolvesToItsService(t *testing.T) {
	b := newScopedBookshop(t, "127.172.112")
	const reviews, ratings = "reviews.default.svc.cluster.local:9080", "ratings.default.svc.cluster.local:9080"
	write(t, filepath.Join(b.dir, "sidecar.yaml"), `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
`)
	b.restartEnvoy(true)
	testenv.Eventually(t, "what is not there is refused", func() error {
		if got, err := b.call("other"); err == nil || !strings.Contains(err.Error(), "status 502") {
			return fmt.Errorf("it is answered by %q, %v", got, err)
		}
		return nil
	})
	leads := func(to string) {
		write(t, filepath.Join(b.dir, "alias.yaml"), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {type: ExternalName, externalName: %s.default.svc.cluster.local}
`, to))
	}
	leads("reviews")
	b.awaitBody("other", "reviews-v1")
	b.expectHosts(reviews)
	b.expectFirstBody("other.default", "reviews-v1")
	b.expectFirstBody("reviews", "reviews-v1")
	leads("ratings")
	b.awaitBody("other", "ratings-v1")
	b.expectHosts(ratings)
	b.expectFirstBody("reviews", "reviews-v1")
	b.expectHosts(ratings, reviews)
}

func TestUsedHostsAreLoadedAtStart(t *testing.T) {
	b := newScopedBookshop(t, "127.172.104")
	b.restartEnvoy(true)
	b.expectHosts()
	b.expectFirstBody("reviews", "reviews-v1")
	const reviews, ratings = "reviews.default.svc.cluster.local:9080", "ratings.default.svc.cluster.local:9080"
	b.expectHosts(reviews)

	// A loaded host has all its names.
	b.expectFirstBody("reviews.default.svc.cluster.local", "reviews-v1")
	b.expectFirstBody("ratings", "ratings-v1")
	b.expectHosts(ratings, reviews)

	// Edits of unloaded hosts are not sent to it.
	b.awaitSync()
	write(t, filepath.Join(b.dir, "other.yaml"), strings.ReplaceAll(fmt.Sprintf(routeDocument, "v2"), "reviews", "unused"))
	b.route("v2")
	b.awaitBody("reviews", "reviews-v2")
	b.expectHosts(ratings, reviews)

	// The usage history of a workload applies to its next Envoy and the next control plane.
	b.plane.stop()
	b.plane = start(t, b.cfg)
	b.route("v1")
	b.awaitBody("reviews", "reviews-v1")
	b.expectHosts(ratings, reviews)
	b.restartEnvoy(true)
	b.expectHosts(ratings, reviews)
	b.expectFirstBody("reviews", "reviews-v1")
}

func TestHostsOutsideTheMeshAreReachable(t *testing.T) {
	b := newScopedBookshop(t, "127.172.105")
	outside := b.serve("outside", 50, 8080)
	if got, err := b.request(false, http.MethodGet, outside+":8080", nil); got != "outside got 0" || err != nil {
		t.Errorf("a host outside the mesh answers %q, %v", got, err)
	}
	b.expectHosts(outside + ":8080")

	// Once the host belongs to the mesh, the mesh's rules apply to requests.
	write(t, filepath.Join(b.dir, "entry.yaml"), fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside}
spec:
  hosts: [outside.test]
  addresses: [%[1]s]
  ports: [{name: http, number: 8080, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: %[2]s}]
`, outside, b.serve("inside", 51, 8080)))
	answer := func(want string) {
		t.Helper()
		testenv.Eventually(t, "it is "+want, func() error {
			got, err := b.request(false, http.MethodGet, outside+":8080", nil)
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				return errors.New(got)
			}
			return nil
		})
	}
	answer("inside got 0")
	b.expectHosts("outside.test:8080")
	write(t, filepath.Join(b.dir, "entry.yaml"), "")
	answer("outside got 0")
}

func TestWorkloadBeyondUnknownHostLimitGetsAllHosts(t *testing.T) {
	b := newScopedBookshop(t, "127.172.106")
	port := 8080
	for i := range 110 {
		last := 100 + i
		name := fmt.Sprint("outside", i)
		address := b.serve(name, last, port)
		if got, err := b.request(false, http.MethodGet, fmt.Sprintf("%s:%d", address, port), nil); got != name+" got 0" || err != nil {
			t.Fatalf("host %d answers %q, %v", i, got, err)
		}
	}
	b.expectHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
	b.expectFirstBody("ratings", "ratings-v1")

	b.plane.stop() // it succeeds now
	address := b.serve("last", 230, port)
	if got, err := b.request(false, http.MethodGet, fmt.Sprintf("%s:%d", address, port), nil); got != "last got 0" || err != nil {
		t.Errorf("without a control plane it answers %q, %v", got, err)
	}
	b.plane = start(t, b.cfg)
	b.route("v2")
	b.awaitBody("reviews", "reviews-v2")
	b.expectHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
}

func TestRequestsWithoutARouteFailAtOnce(t *testing.T) {
	b := newScopedBookshop(t, "127.172.107")
	write(t, filepath.Join(b.dir, "route.yaml"), `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews}
spec:
  hosts: [reviews]
  http:
  - match: [{uri: {prefix: /only}}]
    route: [{destination: {host: reviews, subset: v1}}]
`)
	testenv.Eventually(t, "there is no route", func() error {
		begin := time.Now()
		_, err := b.call("reviews")
		if err == nil {
			return errors.New("the old one is in force")
		}
		if !strings.Contains(err.Error(), "status 404") {
			t.Fatalf("after %v: %v", time.Since(begin), err)
		}
		return nil
	})
}

// TestNameOfCatchAllHostDoesNotLoadAllHosts: a request with the name of a catch-all virtual host does not load all
// hosts.
func TestNameOfCatchAllHostDoesNotLoadAllHosts(t *testing.T) {
	b := newScopedBookshop(t, "127.172.111")
	for _, host := range []string{"allow_any", "Allow_Any", "block_all"} {
		if got, err := b.request(false, http.MethodGet, host, nil); err == nil || !strings.Contains(err.Error(), "status 404") {
			t.Errorf("a request for %s is answered by %q, %v", host, got, err)
		}
	}
	b.expectHosts()
	b.expectFirstBody("reviews", "reviews-v1")
	b.expectHosts("reviews.default.svc.cluster.local:9080")
}

// A wildcard host in the set does not match a host with separate rules that was never called.
func TestHostWithinLoadedWildcardIsLoadedSeparately(t *testing.T) {
	b := newScopedBookshop(t, "127.172.108")
	entry := `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s}
spec:
  hosts: [%[2]q]
  ports: [{name: http, number: 9080, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: %[3]s}]
---
`
	write(t, filepath.Join(b.dir, "entries.yaml"), fmt.Sprintf(entry, "wide", "*.wild.test", b.serve("wide", 60, 9080))+
		fmt.Sprintf(entry, "own", "own.wild.test", b.serve("own", 61, 9080))+fmt.Sprintf(entry, "other", "other.test", b.serve("other", 62, 9080)))
	b.awaitBody("x.wild.test", "wide got 0")
	b.expectFirstBody("own.wild.test", "own got 0")
	b.expectFirstBody("y.wild.test", "wide got 0")
	if got := b.virtualHosts(); slices.Contains(got, "other.test:9080") {
		t.Errorf("it holds %q, of which one was never called", got)
	}
}

func TestOnDemandRequestTimesOutWithoutControlPlane(t *testing.T) {
	b := newScopedBookshopWith(t, "127.172.109", testenv.EnvoyVersion, time.Second)
	b.expectFirstBody("reviews", "reviews-v1")
	b.plane.stop()
	b.expectFirstBody("reviews", "reviews-v1")
	if _, err := b.call("ratings"); err == nil || !strings.Contains(err.Error(), "status 504") {
		t.Errorf("a request for an unloaded host returns %v", err)
	}
	// A request to a loaded host does not end because its body is slower than that.
	slow, w := io.Pipe()
	go func() {
		time.Sleep(3 * time.Second) // longer than the on-demand timeout
		_ = w.Close()
	}()
	if _, err := b.request(true, http.MethodPost, "reviews:9080", io.NopCloser(slow)); err != nil {
		t.Errorf("a slow request: %v", err)
	}
	b.plane = start(t, b.cfg)
	b.awaitBody("ratings", "ratings-v1")
	b.expectFirstBody("ratings", "ratings-v1")
}

// Older Envoys have all hosts: after waiting for a virtual host they respond 404 to a request with a body.
func TestOlderEnvoysGetAllHosts(t *testing.T) {
	for i, version := range []string{testenv.MidEnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			b := newScopedBookshopWith(t, fmt.Sprint("127.172.", 110+i), version, 0)
			if n := len(strings.Fields(b.heldClusters())); n < 5 {
				t.Errorf("it holds %s", b.heldClusters())
			}
			b.expectHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
			if _, err := b.request(false, http.MethodPost, "reviews:9080", bytes.NewReader(make([]byte, 3<<20))); err != nil {
				t.Error(err)
			}
		})
	}
}
