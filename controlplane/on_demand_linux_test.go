package controlplane_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const dbDocuments = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  selector: {app: db}
  ports: [{name: tcp, port: 5432}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db}
spec: {address: NET.20, labels: {app: db}}
---
apiVersion: v1
kind: Service
metadata: {name: late}
spec:
  selector: {app: ratings}
  ports: [{name: http, port: 9080}]
`

// newScopedBookshop returns a bookshop with AutomaticScope, in which the caller reaches a database at 127.x.y.2:5432.
func newScopedBookshop(t *testing.T, network string) *bookshop {
	t.Helper()
	return newScopedBookshopWith(t, network, testenv.EnvoyVersion, 0)
}

func newScopedBookshopWith(t *testing.T, network, envoyVersion string, timeout time.Duration) *bookshop {
	t.Helper()
	b := &bookshop{t: t, network: network, dir: t.TempDir()}
	workloads := []string{}
	for i, w := range []string{"reviews-v1", "reviews-v2", "ratings-v1"} {
		workloads = append(workloads, b.workload(w, fmt.Sprintf("%s.%d", network, 10+i)))
	}
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	write(t, filepath.Join(b.dir, "workloads.yaml"), strings.Join(workloads, "---"))
	db, _, _ := strings.Cut(dbDocuments, "---\napiVersion: v1\n")
	write(t, filepath.Join(b.dir, "db.yaml"), strings.ReplaceAll(db, "NET", network))
	serveGreeting(t, network+".20:5432")
	b.route("v1")
	b.cfg = controlplane.Config{ConfigDirs: []string{b.dir}, StateDir: filepath.Join(t.TempDir(), "state"), Address: network + ".1", AutomaticScope: true}
	b.cfg.OnDemandTimeout, b.envoyVersion = timeout, envoyVersion
	b.plane = start(t, b.cfg)
	b.startEnvoy()
	return b
}

// withToken changes a bootstrap: Envoy connects to the secure port, with a token of the caller's service account.
func (b *bookshop) withToken(bootstrap string) string {
	for _, with := range [][2]string{
		{"NAMESPACE: default,", "NAMESPACE: default, SERVICE_ACCOUNT: caller,"},
		{"[{envoy_grpc: {cluster_name: xds-grpc}}]", fmt.Sprintf(`[{envoy_grpc: {cluster_name: xds-grpc}, initial_metadata: [{key: authorization, value: "Bearer %s"}]}]`,
			b.plane.token("default", "caller"))},
		{"    load_assignment: {cluster_name: xds-grpc,", fmt.Sprintf(`    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: istiod.istio-system.svc
        common_tls_context: {alpn_protocols: [h2], validation_context: {trusted_ca: {inline_string: %q}}}
    load_assignment: {cluster_name: xds-grpc,`, b.plane.Authority().RootPEM())},
	} {
		bootstrap = strings.Replace(bootstrap, with[0], with[1], 1)
	}
	return bootstrap
}

func (b *bookshop) startEnvoy() {
	b.t.Helper()
	at, bootstrap := b.plane.PlainAddr(), bootstrap
	if b.proves {
		at, bootstrap = b.plane.SecureAddr(), b.withToken(bootstrap)
	}
	with := strings.Replace(bootstrap, "INTERCEPTION_MODE: NONE", fmt.Sprintf(`INTERCEPTION_MODE: NONE, UPSTREAM_LISTENERS: "db.default.svc.cluster.local:5432=%s.2:5432"`, b.network), 1)
	b.envoy = envoytest.Start(b.t, testenv.EnvoyOf(b.t, b.envoyVersion), b.t.TempDir(), fmt.Sprintf(with, b.network+".2", b.network+".3", at.Addr(), at.Port()))
	testenv.Eventually(b.t, "Envoy listens", func() error {
		listeners, err := b.envoy.Get("/listeners")
		if err == nil && !strings.Contains(listeners, ":5432") {
			err = errors.New(listeners)
		}
		if err != nil {
			return err
		}
		// A connection to the other workload would request its cluster.
		conn, err := net.Dial("tcp", b.network+".2:15080")
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// serveGreeting starts a TCP server that sends first.
func serveGreeting(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			_ = c.Close()
		}
	}()
}

// heldClusters returns the services' clusters that the Envoy has.
func (b *bookshop) heldClusters() string {
	b.t.Helper()
	text, err := b.envoy.Get("/clusters")
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(text) {
		if name, _, _ := strings.Cut(line, "::"); strings.HasPrefix(name, "outbound|") && strings.Contains(line, "::added_via_api::") {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "outbound|"), ".default.svc.cluster.local"))
		}
	}
	return strings.Join(names, " ")
}

// expectFirstBody checks that the first request succeeds.
func (b *bookshop) expectFirstBody(host, want string) {
	b.t.Helper()
	if got, err := b.call(host); err != nil || got != want {
		b.t.Errorf("a request for %s is answered by %q, %v", host, got, err)
	}
}

func TestSidecarLoadsTheClustersThatItsWorkloadUses(t *testing.T) {
	b := newScopedBookshop(t, "127.172.100")
	if got := b.heldClusters(); got != "" {
		t.Fatalf("before any request it holds %s", got)
	}
	b.expectFirstBody("reviews", "reviews-v1")
	if got := b.heldClusters(); got != "9080|v1|reviews" {
		t.Errorf("after one request it holds %s", got)
	}
	var all sync.WaitGroup
	for range 20 { // concurrent requests for a cluster that is not loaded yet
		all.Go(func() { b.expectFirstBody("ratings", "ratings-v1") })
	}
	all.Wait()

	conn, err := net.Dial("tcp", b.network+".2:5432")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "hello\n" {
		t.Errorf("the first connection to the database gets %q, %v", line, err)
	}

	// The clusters that an edited route refers to are loaded together with the edit.
	b.route("v2")
	testenv.Eventually(t, "the edit is in force, and no request fails", func() error {
		got, err := b.call("reviews")
		if err != nil {
			t.Fatal(err)
		}
		if got != "reviews-v2" {
			return errors.New(got)
		}
		return nil
	})

	// A service that is added later is available to its first request.
	write(t, filepath.Join(b.dir, "db.yaml"), strings.ReplaceAll(dbDocuments, "NET", b.network))
	b.awaitBody("late", "ratings-v1")
}

func TestUsageHistorySurvivesRestarts(t *testing.T) {
	b := newScopedBookshop(t, "127.172.101")
	b.restartEnvoy(true)
	b.expectFirstBody("reviews", "reviews-v1")
	b.expectFirstBody("ratings", "ratings-v1")
	held := b.heldClusters()

	b.plane.stop()
	b.expectFirstBody("reviews", "reviews-v1")
	b.plane = start(t, b.cfg)
	testenv.Eventually(t, "it is connected again", func() error {
		if n := len(b.plane.Status().Clients); n != 1 {
			return fmt.Errorf("%d clients", n)
		}
		return nil
	})
	b.route("v2") // requested from the new control plane
	b.awaitBody("reviews", "reviews-v2")
	b.expectFirstBody("ratings", "ratings-v1")
	if got := b.heldClusters(); !strings.Contains(got, "v1|reviews") || !strings.Contains(got, "|ratings") {
		t.Errorf("after the restart it holds %s, and before %s", got, held)
	}
	// Changes of the claimed clusters' endpoints are applied.
	write(t, filepath.Join(b.dir, "workloads.yaml"), b.workload("ratings-v9", b.network+".30")+"---"+b.workload("reviews-v9", b.network+".31"))
	b.awaitBody("ratings", "ratings-v9")

	b.restartEnvoy(false)
	if got := b.heldClusters(); got != "" {
		t.Errorf("who does not prove to be the workload starts with %s", got)
	}
	b.restartEnvoy(true)
	if got := b.heldClusters(); !strings.Contains(got, "v2|reviews") || !strings.Contains(got, "|ratings") {
		t.Errorf("a new Envoy of the workload starts with %s", got)
	}
}

// restartEnvoy replaces the caller's Envoy.
func (b *bookshop) restartEnvoy(proves bool) {
	b.t.Helper()
	if err := b.envoy.Stop(); err != nil {
		b.t.Fatal(err)
	}
	b.proves = proves
	b.startEnvoy()
}

// TestUnauthenticatedClientDoesNotChangeUsageHistory uses the plaintext port.
func TestUnauthenticatedClientDoesNotChangeUsageHistory(t *testing.T) {
	b := newScopedBookshop(t, "127.172.110")
	b.expectFirstBody("reviews", "reviews-v1")
	b.restartEnvoy(true)
	if got := b.heldClusters(); got != "" {
		t.Errorf("the workload starts with %s, which an unauthenticated client reported", got)
	}
	b.expectFirstBody("ratings", "ratings-v1")
	b.plane.stop()
	kept, err := os.ReadFile(filepath.Join(b.cfg.StateDir, "learned"))
	if err != nil || strings.Contains(string(kept), "reviews") || !strings.Contains(string(kept), `"default/caller/caller"`) {
		t.Errorf("stored usage is %s, %v", kept, err)
	}
}

func TestRemovedAndRestoredServiceIsReachable(t *testing.T) {
	b := newScopedBookshop(t, "127.172.102")
	b.expectFirstBody("ratings", "ratings-v1")
	write(t, filepath.Join(b.dir, "services.yaml"), strings.Replace(serviceDocuments, "metadata: {name: ratings}", "metadata: {name: grades}", 1))
	b.awaitBody("grades", "ratings-v1")
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	b.awaitBody("ratings", "ratings-v1")
	b.expectFirstBody("ratings", "ratings-v1")
}
