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

// virtualHosts are the domains of the virtual hosts that the Envoy has of the routes that its workload's requests go by, of
// each the first.
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

func (b *bookshop) holdsHosts(want ...string) {
	b.t.Helper()
	if got := b.virtualHosts(); !slices.Equal(got, want) {
		b.t.Errorf("it holds the virtual hosts %q, and should hold %q", got, want)
	}
}

// service serves HTTP/1.1 and HTTP/2 at an address of the bookshop's network, and gives the documents of a service of that
// name, whose port is one of HTTP/2.
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

// serve answers with a name and how much it was sent: its headers before it has read anything.
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

// request is sent to the sidecar for a host, by HTTP/1.1 or HTTP/2.
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
	if closer, ok := body.(io.Closer); ok { // the answer has begun; now the request may end
		_ = closer.Close()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return string(text), err
}

// endless is the body of a request that ends when the answer has begun, as a gRPC stream's may: nothing but its first bytes
// are there before.
type endless struct {
	io.Reader
	*io.PipeWriter
}

func newEndless() io.Reader {
	r, w := io.Pipe()
	return endless{io.MultiReader(strings.NewReader("hello"), r), w}
}

func TestFirstRequestOfEachKindWaitsForItsHostAndIsAnswered(t *testing.T) {
	b := openScoped(t, "127.172.103")
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
	b.inSync()
	b.holdsHosts()
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

// TestAnAliasIsHeldAsTheServiceThatItLeadsTo also where it was called before it was there, and when it leads elsewhere.
func TestAnAliasIsHeldAsTheServiceThatItLeadsTo(t *testing.T) {
	b := openScoped(t, "127.172.112")
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
	b.answers("other", "reviews-v1")
	b.holdsHosts(reviews)
	b.atOnce("other.default", "reviews-v1")
	b.atOnce("reviews", "reviews-v1")
	leads("ratings")
	b.answers("other", "ratings-v1")
	b.holdsHosts(ratings)
	b.atOnce("reviews", "reviews-v1")
	b.holdsHosts(ratings, reviews)
}

func TestHostsAreHeldWhenTheyWereUsed(t *testing.T) {
	b := openScoped(t, "127.172.104")
	b.restartEnvoy(true)
	b.holdsHosts()
	b.atOnce("reviews", "reviews-v1")
	const reviews, ratings = "reviews.default.svc.cluster.local:9080", "ratings.default.svc.cluster.local:9080"
	b.holdsHosts(reviews)

	// All of a host's names are there with it.
	b.atOnce("reviews.default.svc.cluster.local", "reviews-v1")
	b.atOnce("ratings", "ratings-v1")
	b.holdsHosts(ratings, reviews)

	// An edit of what it does not hold is none of its business.
	b.inSync()
	write(t, filepath.Join(b.dir, "other.yaml"), strings.ReplaceAll(fmt.Sprintf(routeDocument, "v2"), "reviews", "nobody"))
	b.route("v2")
	b.answers("reviews", "reviews-v2")
	b.holdsHosts(ratings, reviews)

	// What a workload used, its next Envoy and the next control plane know.
	b.plane.stop()
	b.plane = start(t, b.cfg)
	b.route("v1")
	b.answers("reviews", "reviews-v1")
	b.holdsHosts(ratings, reviews)
	b.restartEnvoy(true)
	b.holdsHosts(ratings, reviews)
	b.atOnce("reviews", "reviews-v1")
}

func TestHostsThatTheMeshDoesNotKnowAreAnsweredAsEver(t *testing.T) {
	b := openScoped(t, "127.172.105")
	outside := b.serve("outside", 50, 8080)
	if got, err := b.request(false, http.MethodGet, outside+":8080", nil); got != "outside got 0" || err != nil {
		t.Errorf("a host outside the mesh answers %q, %v", got, err)
	}
	b.holdsHosts(outside + ":8080")

	// Once it is of the mesh, requests go by the mesh's rules.
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
	b.holdsHosts("outside.test:8080")
	write(t, filepath.Join(b.dir, "entry.yaml"), "")
	answer("outside got 0")
}

func TestAWorkloadThatCallsManyUnknownHostsIsGivenAllAndOneForThese(t *testing.T) {
	b := openScoped(t, "127.172.106")
	port := 8080
	for i := range 110 {
		last := 100 + i
		name := fmt.Sprint("outside", i)
		address := b.serve(name, last, port)
		if got, err := b.request(false, http.MethodGet, fmt.Sprintf("%s:%d", address, port), nil); got != name+" got 0" || err != nil {
			t.Fatalf("host %d answers %q, %v", i, got, err)
		}
	}
	b.holdsHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
	b.atOnce("ratings", "ratings-v1")

	b.plane.stop() // it is answered all the same now
	address := b.serve("last", 230, port)
	if got, err := b.request(false, http.MethodGet, fmt.Sprintf("%s:%d", address, port), nil); got != "last got 0" || err != nil {
		t.Errorf("without a control plane it answers %q, %v", got, err)
	}
	b.plane = start(t, b.cfg)
	b.route("v2")
	b.answers("reviews", "reviews-v2")
	b.holdsHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
}

func TestRequestsThatNoRouteIsForAreAnsweredAtOnce(t *testing.T) {
	b := openScoped(t, "127.172.107")
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

// TestNamesOfWhatIsForAllHostsAreNoHosts: asked for by a request, they would bring all hosts.
func TestNamesOfWhatIsForAllHostsAreNoHosts(t *testing.T) {
	b := openScoped(t, "127.172.111")
	for _, host := range []string{"allow_any", "Allow_Any", "block_all"} {
		if got, err := b.request(false, http.MethodGet, host, nil); err == nil || !strings.Contains(err.Error(), "status 404") {
			t.Errorf("a request for %s is answered by %q, %v", host, got, err)
		}
	}
	b.holdsHosts()
	b.atOnce("reviews", "reviews-v1")
	b.holdsHosts("reviews.default.svc.cluster.local:9080")
}

// A pattern that is held is not taken for a host which has rules of its own, and was never called.
func TestPatternsBringTheHostsThatTheyDoNotStandFor(t *testing.T) {
	b := openScoped(t, "127.172.108")
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
	b.answers("x.wild.test", "wide got 0")
	b.atOnce("own.wild.test", "own got 0")
	b.atOnce("y.wild.test", "wide got 0")
	if got := b.virtualHosts(); slices.Contains(got, "other.test:9080") {
		t.Errorf("it holds %q, of which one was never called", got)
	}
}

func TestWithoutAControlPlaneUnknownRequestsEndInTimeAndSucceedAfterwards(t *testing.T) {
	b := openScopedWith(t, "127.172.109", testenv.EnvoyVersion, time.Second)
	b.atOnce("reviews", "reviews-v1")
	b.plane.stop()
	b.atOnce("reviews", "reviews-v1")
	if _, err := b.call("ratings"); err == nil || !strings.Contains(err.Error(), "status 504") {
		t.Errorf("a request for what it does not hold gives %v", err)
	}
	// A body that takes longer than that is no reason to end a request whose host is there.
	slow, w := io.Pipe()
	go func() {
		time.Sleep(3 * time.Second) // longer than the bound
		_ = w.Close()
	}()
	if _, err := b.request(true, http.MethodPost, "reviews:9080", io.NopCloser(slow)); err != nil {
		t.Errorf("a slow request: %v", err)
	}
	b.plane = start(t, b.cfg)
	b.answers("ratings", "ratings-v1")
	b.atOnce("ratings", "ratings-v1")
}

// Older Envoys hold everything: one that waited for a virtual host answers a request that has a body with 404.
func TestOlderEnvoysHoldEverything(t *testing.T) {
	for i, version := range []string{testenv.MidEnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			b := openScopedWith(t, fmt.Sprint("127.172.", 110+i), version, 0)
			if n := len(strings.Fields(b.holds())); n < 5 {
				t.Errorf("it holds %s", b.holds())
			}
			b.holdsHosts("*", "ratings.default.svc.cluster.local:9080", "reviews.default.svc.cluster.local:9080")
			if _, err := b.request(false, http.MethodPost, "reviews:9080", bytes.NewReader(make([]byte, 3<<20))); err != nil {
				t.Error(err)
			}
		})
	}
}
