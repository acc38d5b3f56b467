package controlplane_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// relayed is the bootstrap of an Envoy that connects to an agent's relay on a unix socket.
var relayed = strings.Replace(strings.ReplaceAll(bootstrap, "socket_address: {address: %[3]q, port_value: %[4]d}", "pipe: {path: %[3]q}"), "%[4]d", "", 1)

// egressPorts have one route configuration each; the last one has no virtual hosts.
const egressPorts = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: caller}
spec:
  workloadSelector: {labels: {app: caller}}
  egress:
  - port: {number: 9080, protocol: HTTP, name: one}
    bind: %[1]s.2
    hosts: ["./*"]
  - port: {number: 9082, protocol: HTTP, name: none}
    bind: %[1]s.2
    hosts: ["nowhere/*"]
`

// startRelay runs the relay of an agent, which stores the last accepted configuration in a directory, until stop is
// called.
func startRelay(t *testing.T, socket, dir, upstream string) (r *xdsproxy.Relay, stop func()) {
	t.Helper()
	r, err := xdsproxy.New(xdsproxy.Config{
		Socket: socket, Upstreams: []string{upstream}, Server: xdsproxy.Server{Plaintext: true},
		LastGood: xdsproxy.LastGood{Dirs: []string{dir}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the relay ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

func TestEnvoyRestartedOfflineHasItsVirtualHosts(t *testing.T) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) { restartOffline(t, fmt.Sprintf("127.191.%d", 10+i), version) })
	}
}

func restartOffline(t *testing.T, network, version string) {
	b := &bookshop{t: t, network: network, dir: t.TempDir()}
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	write(t, filepath.Join(b.dir, "workloads.yaml"), b.workload("reviews-v1", network+".10")+"---"+b.workload("reviews-v2", network+".11")+
		"---"+b.workload("ratings-v1", network+".12"))
	b.route("v2")
	write(t, filepath.Join(b.dir, "egress.yaml"), fmt.Sprintf(egressPorts, network))
	b.cfg = controlplane.Config{ConfigDirs: []string{b.dir}, StateDir: filepath.Join(t.TempDir(), "state"), Address: network + ".1"}
	b.plane = start(t, b.cfg)

	state, socket := t.TempDir(), t.TempDir()+"/XDS"
	r, stop := startRelay(t, socket, state, b.plane.PlainAddr().String())
	b.runEnvoy(t, version, socket, func(envoy *envoytest.Envoy) {
		b.awaitEgressBody("reviews", "reviews-v2")
		b.awaitEgressBody("ratings", "ratings-v1")
		testenv.Eventually(t, "the accepted configuration is stored", func() error {
			if st := r.Status().LastGood; st.Storage == nil || st.Storage.Saved.IsZero() {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
	})
	stop()
	b.plane.stop()

	_, stop = startRelay(t, socket, state, b.plane.PlainAddr().String())
	defer stop()
	b.runEnvoy(t, version, socket, func(envoy *envoytest.Envoy) {
		b.awaitEgressBody("reviews", "reviews-v2")
		b.awaitEgressBody("ratings", "ratings-v1")
		if late, err := envoy.Get("/stats?usedonly&filter=init_fetch_timeout"); err != nil || late != "" {
			t.Errorf("Envoy waited for what there is not: %s, %v", late, err)
		}
		b.cfg.Ports = b.plane.samePorts()
		b.plane = start(t, b.cfg)
		b.route("v1")
		b.awaitEgressBody("reviews", "reviews-v1")
		b.awaitEgressBody("ratings", "ratings-v1")
	})
}

func (b *bookshop) runEnvoy(t *testing.T, version, socket string, test func(*envoytest.Envoy)) {
	t.Run("life", func(t *testing.T) {
		text := fmt.Sprintf(relayed, b.network+".2", b.network+".3", socket)
		test(envoytest.Start(t, testenv.EnvoyOf(t, version), t.TempDir(), text))
	})
}

// awaitEgressBody is like awaitBody, but uses the egress port instead of the sidecar's outbound port.
func (b *bookshop) awaitEgressBody(host, want string) {
	b.t.Helper()
	testenv.Eventually(b.t, host+" is answered by "+want, func() error {
		client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		request, err := http.NewRequest(http.MethodGet, "http://"+b.network+".2:9080/", nil)
		if err != nil {
			return err
		}
		request.Host = host + ":9080"
		resp, err := client.Do(request)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != want {
			return fmt.Errorf("status %d, %q, %w", resp.StatusCode, body, err)
		}
		return nil
	})
}
