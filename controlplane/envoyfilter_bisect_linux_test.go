package controlplane_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// luaFilter is an EnvoyFilter with a Lua script. Only Envoy can check whether it compiles.
const luaFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: lua.%[1]s
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %q}
`

func (b *bookshop) script(name, code string) {
	write(b.t, filepath.Join(b.dir, name+".yaml"), fmt.Sprintf(luaFilter, name, code))
}

func addHeaderFilter(header, value string) string {
	return fmt.Sprintf("function envoy_on_response(handle) handle:headers():add(%q, %q) end", header, value)
}

const noLuaFilter = "function envoy_on_response(handle) this is no Lua"

// headers waits until a response through a sidecar has the header values; "" means that the header is absent.
func (b *bookshop) headers(sidecar string, want map[string]string) {
	b.t.Helper()
	proxy := &url.URL{Scheme: "http", Host: sidecar + ":15080"}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	testenv.Eventually(b.t, fmt.Sprintf("answers through %s have %v", sidecar, want), func() error {
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

// startSecondEnvoy starts one more sidecar of the same namespace.
func (b *bookshop) startSecondEnvoy(version, host string) string {
	b.t.Helper()
	at := b.plane.PlainAddr()
	own := b.network + "." + host
	text := strings.ReplaceAll(fmt.Sprintf(bootstrap, own, b.network+".3", at.Addr(), at.Port()), "caller", "caller"+host)
	envoytest.Start(b.t, testenv.EnvoyOf(b.t, version), b.t.TempDir(), text)
	return own
}

func (b *bookshop) awaitAllInSync(n int) {
	b.t.Helper()
	testenv.Eventually(b.t, "the Envoys are in sync", func() error {
		st := b.plane.Status()
		if len(st.Clients) != n || st.Pending {
			return fmt.Errorf("clients are %+v", st.Clients)
		}
		for _, c := range st.Clients {
			if !c.InSync || len(c.Types) < 4 {
				return fmt.Errorf("%s is %+v", c.Node, c.Types)
			}
		}
		return nil
	})
}

// Envoy may reject an EnvoyFilter that the control plane's checks accept. Like a malformed document, it is then not in
// force for that Envoy: the previous version stays in force, if there is one. All listeners still exist, and other
// documents take effect.
func TestEnvoyFilterRejectedByEnvoyDoesNotBlockItsListener(t *testing.T) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			b := newBookshop(t, fmt.Sprintf("127.177.%d", 20+i), version)
			b.script("own", addHeaderFilter("x-own", "one"))
			b.headers(b.network+".2", map[string]string{"x-own": "one"})
			b.script("own", noLuaFilter)
			b.plane.awaitProblem("the previous version stays in force")
			b.headers(b.network+".2", map[string]string{"x-own": "one"})

			b.script("other", addHeaderFilter("x-other", "yes"))
			b.headers(b.network+".2", map[string]string{"x-own": "one", "x-other": "yes"})
			b.headers(b.startSecondEnvoy(version, "4"), map[string]string{"x-own": "one", "x-other": "yes"})
			b.awaitAllInSync(2)

			// The previous version survives a restart of the control plane.
			b.plane.stop()
			b.plane = start(t, b.cfg)
			b.headers(b.startSecondEnvoy(version, "5"), map[string]string{"x-own": "one", "x-other": "yes"})
			b.plane.awaitProblem("the previous version stays in force")
			b.awaitAllInSync(3)

			b.script("own", addHeaderFilter("x-own", "two"))
			for _, host := range []string{".2", ".4", ".5"} {
				b.headers(b.network+host, map[string]string{"x-own": "two", "x-other": "yes"})
			}
			b.awaitAllInSync(3)
			if problems := b.plane.Status().Problems; len(problems) > 0 {
				t.Errorf("problems remain after the fix: %v", problems)
			}
		})
	}
}

// A filter that is not the cause of a rejection stays in force.
func TestEnvoyFilterThatIsNotTheCauseStaysInForce(t *testing.T) {
	b := newBookshop(t, "127.177.22", testenv.EnvoyVersion)
	b.script("deny", "function envoy_on_request(handle) handle:respond({[':status'] = '403'}, 'no') end")
	testenv.Eventually(t, "requests are refused", func() error {
		if _, err := b.call("reviews"); err == nil || !strings.Contains(err.Error(), "403") {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	write(t, filepath.Join(b.dir, "rings.yaml"), `apiVersion: networking.istio.io/v1alpha3
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
	b.plane.awaitProblem("rings.yaml")
	b.awaitSync()
	for range 5 {
		if _, err := b.call("reviews"); err == nil || !strings.Contains(err.Error(), "403") {
			t.Fatalf("a request passes although the other filter rejects it: %v", err)
		}
	}
	for _, p := range b.plane.Status().Problems {
		if strings.Contains(p.String(), "deny") {
			t.Errorf("the wrong document is reported: %v", p)
		}
	}
}

// Two rejected filters at the same time are both found.
func TestTwoRejectedEnvoyFiltersAreBothFound(t *testing.T) {
	network := "127.177.23"
	b := &bookshop{t: t, network: network, dir: t.TempDir()}
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	write(t, filepath.Join(b.dir, "workloads.yaml"), b.workload("reviews-v1", network+".10"))
	b.route("v1")
	b.script("first", noLuaFilter)
	b.script("second", noLuaFilter+" either")
	b.script("third", addHeaderFilter("x-third", "yes"))
	b.cfg = controlplane.Config{ConfigDirs: []string{b.dir}, StateDir: filepath.Join(t.TempDir(), "state"), Address: network + ".1"}
	b.plane = start(t, b.cfg)
	b.headers(b.startSecondEnvoy(testenv.EnvoyVersion, "2"), map[string]string{"x-third": "yes"})
	testenv.Eventually(t, "both are reported", func() error {
		text := fmt.Sprint(b.plane.Status().Problems)
		if !strings.Contains(text, "first.yaml") || !strings.Contains(text, "second.yaml") {
			return errors.New(text)
		}
		return nil
	})
	b.awaitAllInSync(1)
}
