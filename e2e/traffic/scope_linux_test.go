package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Where traffic is captured, the relay of the agent between them, a sidecar that holds what its workload uses begins with
// nothing, and not one of the first requests and connections fails.
func TestFirstRequestWaitsForItsClusterAndIsAnswered(t *testing.T) {
	w := startMesh(t, testenv.EnvoyVersion, "ISTIO_META_PILOTFISH_SCOPE=automatic")
	if held := w.listClusters("client"); len(held) > 0 {
		t.Errorf("before any request the client's sidecar holds %v", held)
	}
	if hosts := w.listHosts("client"); len(hosts) > 0 {
		t.Errorf("before any request the client's sidecar has the virtual hosts %v", hosts)
	}
	var first sync.WaitGroup
	fresh := w.client("client", false)
	for n := range 4 { // all at once, two for each
		host := w.edits.Host(n % 2)
		first.Go(func() {
			if err := w.get(fresh, "http://"+host, "", n); err != nil {
				t.Errorf("the first request for %s: %v", host, err)
			}
		})
		first.Go(func() {
			if err := w.sendLine("client", fmt.Sprintf("%s:%d", host, portTCP)); err != nil {
				t.Errorf("the first connection to %s: %v", host, err)
			}
		})
	}
	first.Wait()
	held := w.listClusters("client")
	for _, want := range []string{"outbound|9000||s0.ns0.svc.cluster.local", "outbound|9000||s1.ns1.svc.cluster.local"} {
		if !slices.Contains(held, want) {
			t.Errorf("then it does not hold %s: %v", want, held)
		}
	}
	if hosts := w.listHosts("client"); !slices.Equal(hosts, []string{"s0.ns0.svc.cluster.local", "s1.ns1.svc.cluster.local"}) {
		t.Errorf("it has the virtual hosts %v", hosts)
	}
	for _, name := range held {
		if !strings.HasSuffix(name, "|s0.ns0.svc.cluster.local") && !strings.HasSuffix(name, "|s1.ns1.svc.cluster.local") {
			t.Errorf("it holds %s, which nobody asked for", name)
		}
	}
}

// listClusters returns the clusters of the services that an instance's Envoy has.
func (w *testMesh) listClusters(instance string) []string {
	w.t.Helper()
	text := w.readAdmin(instance, "/clusters")
	var names []string
	for line := range strings.Lines(text) {
		if name, _, _ := strings.Cut(line, "::"); strings.HasPrefix(name, "outbound|") && strings.Contains(line, "::added_via_api::") {
			names = append(names, name)
		}
	}
	return names
}

// listHosts returns the first domain of each virtual host in the HTTP route configurations of an instance's Envoy.
func (w *testMesh) listHosts(instance string) []string {
	w.t.Helper()
	var dump struct {
		Configs []struct {
			RouteConfig struct {
				Name         string
				VirtualHosts []struct{ Domains []string } `json:"virtual_hosts"`
			} `json:"route_config"`
		}
	}
	if err := json.Unmarshal([]byte(w.readAdmin(instance, "/config_dump?resource=dynamic_route_configs")), &dump); err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, c := range dump.Configs {
		if c.RouteConfig.Name != strconv.Itoa(portHTTP) && c.RouteConfig.Name != "80" {
			continue
		}
		for _, host := range c.RouteConfig.VirtualHosts {
			names = append(names, host.Domains[0])
		}
	}
	slices.Sort(names)
	return names
}

// readAdmin reads a page of the admin interface of an instance's Envoy.
func (w *testMesh) readAdmin(instance, path string) string {
	w.t.Helper()
	client := http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.DialAdmin(ctx, instance) },
	}}
	response, err := client.Get("http://admin" + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// TestNoRequestOfAScopedSidecarFailsDuringEdits: the virtual hosts and clusters of a sidecar that were added because it
// used them are changed, removed and added again by edits. No request fails.
func TestNoRequestOfAScopedSidecarFailsDuringEdits(t *testing.T) {
	w := startMesh(t, testenv.EnvoyVersion, "ISTIO_META_PILOTFISH_SCOPE=automatic")
	f := w.startTraffic()
	w.edit(f, func(int) {})
	f.done()
}
