package controlplane_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The mesh of these tests: a caller's Envoy that is configured from port 15010, and two services, one of them in two
// versions. Only the caller has a sidecar, and it has no certificate, so mutual TLS is disabled.
const (
	serviceDocuments = `
apiVersion: v1
kind: Service
metadata: {name: reviews}
spec:
  selector: {app: reviews}
  ports: [{name: http, port: 9080}]
---
apiVersion: v1
kind: Service
metadata: {name: ratings}
spec:
  selector: {app: ratings}
  ports: [{name: http, port: 9080}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews}
spec:
  host: reviews
  trafficPolicy: {tls: {mode: DISABLE}}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: others}
spec:
  host: "*.default.svc.cluster.local"
  trafficPolicy: {tls: {mode: DISABLE}}
`
	routeDocument = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews}
spec:
  hosts: [reviews]
  http:
  - route: [{destination: {host: reviews, subset: %s}}]
`
	bootstrap = `
node:
  id: "sidecar~%[1]s~caller.default~default.svc.cluster.local"
  cluster: caller
  metadata: {NAME: caller, NAMESPACE: default, INTERCEPTION_MODE: NONE, INSTANCE_IPS: %[1]q, APP_ADDRESS: %[2]q, LABELS: {app: caller}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: sds-grpc
    type: STATIC
    load_assignment: {cluster_name: sds-grpc}
  - name: xds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[3]q, port_value: %[4]d}}}}]}]}
`
)

// bookshop is that mesh. Each bookshop uses a separate network.
type bookshop struct {
	t       testing.TB
	network string // "127.68.1"
	dir     string
	cfg     controlplane.Config
	plane   *testServer
	envoy   *envoytest.Envoy
	// proves: Envoys that are started afterwards authenticate as the caller.
	proves bool
	// envoyVersion is the version of Envoys that are started afterwards.
	envoyVersion string
}

func newBookshop(t *testing.T, network, envoyVersion string) *bookshop {
	t.Helper()
	b := &bookshop{t: t, network: network, dir: t.TempDir()}
	workloads := []string{}
	for i, w := range []string{"reviews-v1", "reviews-v2", "ratings-v1"} {
		workloads = append(workloads, b.workload(w, fmt.Sprintf("%s.%d", network, 10+i)))
	}
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	write(t, filepath.Join(b.dir, "workloads.yaml"), strings.Join(workloads, "---"))
	b.route("v1")
	b.cfg = controlplane.Config{ConfigDirs: []string{b.dir}, StateDir: filepath.Join(t.TempDir(), "state"), Address: network + ".1"}
	b.plane = start(t, b.cfg)
	at := b.plane.PlainAddr()
	b.envoy = envoytest.Start(t, testenv.EnvoyOf(t, envoyVersion), t.TempDir(),
		fmt.Sprintf(bootstrap, network+".2", network+".3", at.Addr(), at.Port()))
	return b
}

// workload serves a version of a service that responds with its name, and returns its document.
func (b *bookshop) workload(name, address string) string {
	b.t.Helper()
	l, err := net.Listen("tcp", address+":9080")
	if err != nil {
		b.t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name)
	})}}
	s.Start()
	b.t.Cleanup(s.Close)
	app, version, _ := strings.Cut(name, "-")
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %s}
spec: {address: %s, labels: {app: %s, version: %s}}
`, name, address, app, version)
}

func (b *bookshop) route(subset string) {
	b.t.Helper()
	write(b.t, filepath.Join(b.dir, "route.yaml"), fmt.Sprintf(routeDocument, subset))
}

// call sends a request like the caller's application: by the short name, through its sidecar.
func (b *bookshop) call(host string) (string, error) {
	sidecar := &url.URL{Scheme: "http", Host: b.network + ".2:15080"}
	client := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{Proxy: http.ProxyURL(sidecar), DisableKeepAlives: true}}
	resp, err := client.Get("http://" + host + ":9080/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return string(body), err
}

func (b *bookshop) awaitBody(host, want string) {
	b.t.Helper()
	testenv.Eventually(b.t, host+" is answered by "+want, func() error {
		got, err := b.call(host)
		if err == nil && got != want {
			err = fmt.Errorf("answered by %q", got)
		}
		return err
	})
}

func (b *bookshop) awaitSync() {
	b.t.Helper()
	testenv.Eventually(b.t, "Envoy is in sync", func() error {
		st := b.plane.Status()
		if len(st.Clients) == 1 && st.Clients[0].InSync && !st.Pending && len(st.Clients[0].Types) >= 4 {
			return nil
		}
		return fmt.Errorf("clients are %+v", st.Clients)
	})
}

// counters reads Envoy's counters of configuration.
func (b *bookshop) counters() map[string]int {
	b.t.Helper()
	text, err := b.envoy.Get("/stats?filter=" + url.QueryEscape(`^(cluster_manager\.(cds\.update_success|cluster_(added|modified|removed))|listener_manager\.(lds\.update_success|listener_(added|modified|removed|in_place_updated)))$`))
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]int{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if all[name], err = strconv.Atoi(value); err != nil {
			b.t.Fatalf("counter %q: %v", line, err)
		}
	}
	return all
}

// forEachEnvoy runs a test with each Envoy version, each in a separate network.
func forEachEnvoy(t *testing.T, network int, test func(*testing.T, *bookshop)) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			test(t, newBookshop(t, fmt.Sprintf("127.68.%d", network+i), version))
		})
	}
}

func TestEditedVirtualServiceIsInForceInEnvoy(t *testing.T) {
	forEachEnvoy(t, 10, func(t *testing.T, b *bookshop) {
		b.awaitBody("reviews", "reviews-v1")
		b.awaitBody("ratings.default.svc.cluster.local", "ratings-v1")
		b.awaitSync()
		before := b.counters()
		b.route("v2")
		b.awaitBody("reviews", "reviews-v2")
		b.awaitSync()
		for name, count := range b.counters() {
			if count != before[name] {
				t.Errorf("an edited route made %s rise from %d to %d", name, before[name], count)
			}
		}
	})
}

func TestLastValidConfigurationStaysInForceAfterBadEdit(t *testing.T) {
	b := newBookshop(t, "127.68.20", testenv.EnvoyVersion)
	b.awaitBody("reviews", "reviews-v1")
	write(t, filepath.Join(b.dir, "route.yaml"), strings.Replace(fmt.Sprintf(routeDocument, "v2"), "http:", "htpp:", 1))
	b.plane.awaitProblem("route.yaml:7:3")
	b.awaitSync()
	b.awaitBody("reviews", "reviews-v1")
	b.route("v2")
	b.awaitBody("reviews", "reviews-v2")
}

func TestReferenceToMissingSubsetIsReportedWithPosition(t *testing.T) {
	b := newBookshop(t, "127.68.21", testenv.EnvoyVersion)
	b.awaitBody("reviews", "reviews-v1")
	b.route("v3")
	b.plane.awaitProblem("route.yaml:8")
	if _, body := b.plane.get("/debug/problems"); !strings.Contains(body, "v3") {
		t.Fatalf("the debug page is %s", body)
	}
}

func TestRestartedControlPlaneLeavesEnvoyUndisturbed(t *testing.T) {
	forEachEnvoy(t, 30, func(t *testing.T, b *bookshop) {
		b.awaitBody("reviews", "reviews-v1")
		b.awaitSync()
		before := b.counters()
		stop, failed := make(chan struct{}), make(chan error, 1)
		go func() { // traffic
			defer close(failed)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := b.call("reviews"); err != nil {
					failed <- err
					return
				}
			}
		}()
		for range 2 {
			b.plane.stop()
			b.awaitBody("reviews", "reviews-v1")
			b.plane = start(t, b.cfg)
			b.awaitSync()
		}
		close(stop)
		if err, ok := <-failed; ok {
			t.Errorf("a request failed: %v", err)
		}
		for name, count := range b.counters() {
			if count != before[name] {
				t.Errorf("%s rose from %d to %d", name, before[name], count)
			}
		}
		b.route("v2")
		b.awaitBody("reviews", "reviews-v2")
	})
}

func TestChangesDuringDowntimeTakeEffectAfterRestart(t *testing.T) {
	forEachEnvoy(t, 40, func(t *testing.T, b *bookshop) {
		b.awaitBody("reviews", "reviews-v1")
		b.awaitBody("ratings", "ratings-v1")
		b.awaitSync()
		b.plane.stop()
		b.route("v2")
		write(t, filepath.Join(b.dir, "services.yaml"), strings.Replace(serviceDocuments, "metadata: {name: ratings}", "metadata: {name: grades}", 1))
		b.plane = start(t, b.cfg)
		b.awaitBody("reviews", "reviews-v2")
		b.awaitBody("grades", "ratings-v1")
		b.awaitSync()
		testenv.Eventually(t, "the old service's cluster is gone", func() error {
			clusters, err := b.envoy.Get("/clusters")
			if err == nil && strings.Contains(clusters, "ratings.default") {
				err = fmt.Errorf("it is still there")
			}
			return err
		})
	})
}

func TestDebugPagesShowAConnectedEnvoy(t *testing.T) {
	b := newBookshop(t, "127.68.50", testenv.EnvoyVersion)
	b.awaitBody("reviews", "reviews-v1")
	b.awaitSync()
	id := b.plane.Status().Clients[0].Node
	for path, wants := range map[string][]string{
		"/debug/syncz": {id, `"inSync": true`, "envoy.config.cluster.v3.Cluster"},
		"/debug/config_dump?proxyID=" + url.QueryEscape(id): {"outbound|9080|v1|reviews.default.svc.cluster.local", b.network + ".10", "15080"},
		"/debug/registryz": {"reviews.default.svc.cluster.local", b.network + ".11"},
		"/debug/configz":   {"route.yaml", "in force"},
		"/metrics":         {"pilot_xds 1", "pilot_xds_pushes", "pilot_proxy_convergence_time", "pilot_debounce_time"},
		"/healthz/ready":   {"ready"},
	} {
		code, body := b.plane.get(path)
		for _, want := range wants {
			if code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s returns %d without %q:\n%.2000s", path, code, want, body)
			}
		}
	}
	if code, body := b.plane.get("/debug/config_dump?proxyID=unknown"); code != http.StatusNotFound || !strings.Contains(body, "/debug/syncz") {
		t.Errorf("an unknown proxy returns %d, %s", code, body)
	}
}
