package controlplane_test

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/inspect"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// filter writes an EnvoyFilter with a Lua script, and returns its file.
func (b *bookshop) filter(name, code string) string {
	file := filepath.Join(b.dir, name+".yaml")
	write(b.t, file, fmt.Sprintf(luaFilter, name, code))
	return file
}

// awaitHeaders waits until a response through a sidecar has the header values.
func (b *bookshop) awaitHeaders(sidecar string, want map[string]string) {
	b.t.Helper()
	proxy := &url.URL{Scheme: "http", Host: sidecar + ":15080"}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	testenv.Eventually(b.t, fmt.Sprintf("responses through %s have %v", sidecar, want), func() error {
		resp, err := client.Get("http://reviews:9080/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for name, value := range want {
			if got := resp.Header.Get(name); got != value || resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d, %s: %q", resp.StatusCode, name, got)
			}
		}
		return nil
	})
}

// startNeighbour starts one more sidecar of the same namespace.
func (b *bookshop) startNeighbour(version, host string) string {
	b.t.Helper()
	at := b.plane.PlainAddr()
	own := b.network + "." + host
	text := strings.ReplaceAll(fmt.Sprintf(bootstrap, own, b.network+".3", at.Addr(), at.Port()), "caller", "caller"+host)
	envoytest.Start(b.t, testenv.EnvoyOf(b.t, version), b.t.TempDir(), text)
	return own
}

// awaitRejections waits until n proxies have rejected a resource, and proxy-status names the document first.
func (b *bookshop) awaitRejections(n int, document, file string) {
	b.t.Helper()
	testenv.Eventually(b.t, fmt.Sprintf("%d proxies reject %s", n, document), func() error {
		var out strings.Builder
		if err := inspect.WriteClients(&out, b.plane.Status().Clients, time.Now()); err != nil {
			return err
		}
		lines := strings.Split(out.String(), "\n")
		named := 0
		for i, line := range lines[:len(lines)-1] {
			if strings.Contains(line, " rejected ") && strings.Contains(lines[i+1], "possible cause: "+document+" at "+file) {
				named++
			}
		}
		if named != n {
			return fmt.Errorf("proxy-status is\n%s", out.String())
		}
		return nil
	})
}

// Envoy may reject an EnvoyFilter that the control plane's checks accept. The rejection names the document, Envoy keeps
// its last accepted listener, and other resources still change. A new Envoy has no listener until the document is
// fixed. Then all have the new version.
func TestEnvoyKeepsTheAcceptedListenerWhenItRejectsAnEnvoyFilter(t *testing.T) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			b := newBookshop(t, fmt.Sprintf("127.177.%d", 20+i), version)
			b.filter("first", addHeaderFilter("x-first", "one"))
			b.awaitHeaders(b.network+".2", map[string]string{"x-first": "one"})
			b.plane.awaitSync(1)

			file := b.filter("first", noLuaFilter)
			b.awaitRejections(1, "EnvoyFilter default/first", file)
			b.route("v2")
			b.awaitBody("reviews", "reviews-v2")
			b.awaitHeaders(b.network+".2", map[string]string{"x-first": "one"})

			// A restarted control plane generates the same listener again.
			b.plane.stop()
			b.plane = start(t, b.cfg)
			b.startNeighbour(version, "4")
			b.awaitRejections(2, "EnvoyFilter default/first", file)
			b.awaitHeaders(b.network+".2", map[string]string{"x-first": "one"})
			if found := fmt.Sprint(b.plane.debugProblems()); !strings.Contains(found, file) {
				t.Errorf("findings are %s", found)
			}

			// After the fix of one of two bad documents, the other one is named.
			second := b.filter("second", strings.Replace(noLuaFilter, "on_response", "on_request", 1))
			b.filter("first", addHeaderFilter("x-first", "two"))
			b.awaitRejections(2, "EnvoyFilter default/second", second)
			b.filter("second", addHeaderFilter("x-second", "yes"))
			for _, host := range []string{".2", ".4"} {
				b.awaitHeaders(b.network+host, map[string]string{"x-first": "two", "x-second": "yes"})
			}
			b.plane.awaitSync(2)
			if problems := b.plane.debugProblems(); len(problems) > 0 {
				t.Errorf("problems remain after the fix: %v", problems)
			}
		})
	}
}

// The rejection of a cluster names its cause and the reason. A filter that is not the cause stays in force and is not
// named.
func TestRejectedClusterIsAttributedToItsDocument(t *testing.T) {
	b := newBookshop(t, "127.177.9", testenv.EnvoyVersion)
	b.filter("deny", "function envoy_on_request(handle) handle:respond({[':status'] = '403'}, 'no') end")
	testenv.Eventually(t, "requests are refused", func() error {
		if _, err := b.call("reviews"); err == nil || !strings.Contains(err.Error(), "403") {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	b.plane.awaitSync(1)
	file := filepath.Join(b.dir, "rings.yaml")
	write(t, file, `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: rings}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {cluster: {service: ratings.default.svc.cluster.local}}
    patch:
      operation: MERGE
      value: {lb_policy: RING_HASH, ring_hash_lb_config: {minimum_ring_size: 10, maximum_ring_size: 5}}
`)
	b.awaitRejections(1, "EnvoyFilter default/rings", file)
	if _, err := b.call("reviews"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Fatalf("a request passes although the other filter rejects it: %v", err)
	}
	if found := fmt.Sprint(b.plane.debugProblems()); !strings.Contains(found, file) ||
		!strings.Contains(found, "minimum_ring_size (10) > maximum_ring_size (5)") || strings.Contains(found, "deny") {
		t.Errorf("findings are %s", found)
	}
}
