package envoy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// dynamicBootstrap configures an Envoy that reads clusters and listeners from the sources %s. No process listens on the
// port of cluster "dead".
const dynamicBootstrap = `
node: {id: test, cluster: test}
admin: {address: {pipe: {path: admin.sock}}}
dynamic_resources:
%s
static_resources:
  clusters:
  - name: dead
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: dead, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.41.1.3, port_value: 9}}}}]}]}
`

const fromADS = `
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: dead}}]}`

const fromFiles = `
  cds_config: {path_config_source: {path: %s/cds.yaml}}
  lds_config: {path_config_source: {path: %s/lds.yaml}}`

const unreachableADS = `{api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: dead}}]}, resource_api_version: V3, initial_fetch_timeout: 600s}`

const (
	noResources      = "resources: []\n"
	clusterNeedsEDS  = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: needs-eds, type: EDS, eds_cluster_config: {eds_config: " + unreachableADS + "}}\n"
	listenerNeedsRDS = `resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: needs-rds
  address: {socket_address: {address: 127.41.1.3, port_value: 0}}
  filter_chains:
  - filters:
    - name: hcm
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: x
        rds: {route_config_name: the-routes, config_source: ` + unreachableADS + `}
        http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`
	listenerRefused = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener, name: bad}\n"
)

func TestReadinessReportsWhatEnvoyWaitsFor(t *testing.T) {
	for _, c := range []struct {
		name, cds, lds string // files, or ADS with none of these resources
		want           string // "" for ready
	}{
		{"no control plane", "", "", "clusters not yet received: no connection to the control plane"},
		{"a cluster without endpoints", clusterNeedsEDS, noResources, "waiting for 1 cluster(s) to get endpoints or certificates (needs-eds)"},
		{"a listener without routes", noResources, listenerNeedsRDS, "Envoy is INITIALIZING: waiting for routes or certificates of listeners (RdsRouteConfigSubscription RDS init the-routes)"},
		{"a refused listener", noResources, listenerRefused, "listeners received and rejected (1 times)"},
		{"nothing to configure", noResources, noResources, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, source := t.TempDir(), fromADS
			if c.cds != "" {
				source = fmt.Sprintf(fromFiles, dir, dir)
				write(t, filepath.Join(dir, "cds.yaml"), c.cds)
				write(t, filepath.Join(dir, "lds.yaml"), c.lds)
			}
			p, admin := startEnvoy(t, fmt.Sprintf(dynamicBootstrap, source))
			r := NewReadiness(ReadinessConfig{Admin: admin, Dynamic: true})
			last := ""
			eventually(t, c.want, func() bool {
				select {
				case <-p.Done():
					t.Fatalf("Envoy %s: %q", p.Exit(), p.Exit().Tail)
				default:
				}
				ok, reason := r.Check(t.Context())
				if reason != last {
					t.Log(reason)
				}
				last = reason
				return ok == (c.want == "") && strings.Contains(reason, c.want)
			})
		})
	}
}

func TestEndedOrDrainingEnvoyIsNotReady(t *testing.T) {
	p, admin := startEnvoy(t, staticBootstrap)
	r := NewReadiness(ReadinessConfig{Admin: admin})
	waitReady(t, p, admin)
	if ok, reason := r.Check(t.Context()); !ok {
		t.Fatal(reason)
	}
	if _, err := admin.do(t.Context(), http.MethodPost, "/healthcheck/fail", nil, maxResponse); err != nil {
		t.Fatal(err)
	}
	eventually(t, "draining", func() bool {
		ok, reason := r.Check(t.Context())
		return !ok && strings.Contains(reason, "DRAINING")
	})
	p.Stop(expiredContext())
	eventually(t, "ended", func() bool {
		ok, reason := r.Check(t.Context())
		return !ok && strings.Contains(reason, "does not listen on its admin address")
	})
}

// slowEnvoy responds like a ready Envoy until it is frozen; then it does not respond.
type slowEnvoy struct {
	frozen   atomic.Bool
	requests atomic.Int64
}

func (e *slowEnvoy) serve(t *testing.T) *Admin {
	t.Helper()
	answer := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			e.requests.Add(1)
			if e.frozen.Load() {
				<-r.Context().Done()
				return
			}
			_, _ = fmt.Fprint(w, text)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", answer("LIVE\n"))
	mux.HandleFunc("/stats", answer(`{"stats":[{"name":"listener_manager.workers_started","value":1}]}`))
	server := httptest.NewServer(mux)
	admin := NewAdmin(strings.TrimPrefix(server.URL, "http://"))
	t.Cleanup(func() { admin.Close(); server.Close() })
	return admin
}

// fakeClock changes only when the test advances it.
type fakeClock struct{ ns atomic.Int64 }

func (c *fakeClock) now() time.Time          { return time.Unix(1e9, c.ns.Load()) }
func (c *fakeClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func TestBusyEnvoyStaysReadyOnlyAfterStart(t *testing.T) {
	var e slowEnvoy
	admin := e.serve(t)
	old, fresh := NewReadiness(ReadinessConfig{Admin: admin}), NewReadiness(ReadinessConfig{Admin: admin})
	if ok, reason := old.Check(t.Context()); !ok {
		t.Fatal(reason)
	}
	e.frozen.Store(true)
	if ok, reason := old.Check(contextWithTimeout(t, 20e6)); !ok {
		t.Errorf("a busy Envoy is reported as %q", reason)
	}
	if ok, reason := fresh.Check(contextWithTimeout(t, 20e6)); ok || !strings.Contains(reason, "does not respond") {
		t.Errorf("an Envoy that has never responded: %v, %q", ok, reason)
	}
}

func TestUnresponsiveEnvoyIsNotReadyUntilItResponds(t *testing.T) {
	var e slowEnvoy
	var c fakeClock
	r := NewReadiness(ReadinessConfig{Admin: e.serve(t), Now: c.now})
	if ok, reason := r.Check(t.Context()); !ok {
		t.Fatal(reason)
	}
	e.frozen.Store(true)
	c.advance(time.Hour) // without queries, so Envoy's state is unknown
	if ok, reason := r.Check(t.Context()); !ok || !strings.Contains(reason, "busy") {
		t.Errorf("after one query: %v, %q", ok, reason)
	}
	began := c.now()
	c.advance(maxUnresponsive)
	got := r.Condition(t.Context())
	if got.OK || !strings.Contains(got.Reason, "does not respond") || got.Remedy == "" || !got.Since.Equal(began) {
		t.Errorf("after %v: %+v, since %v", maxUnresponsive, got, began)
	}
	if d, n := r.UnresponsiveFor(); d != maxUnresponsive || n != 2 {
		t.Errorf("silent for %v, %d queries", d, n)
	}
	e.frozen.Store(false)
	c.advance(time.Second)
	if ok, reason := r.Check(t.Context()); !ok || reason != "" {
		t.Errorf("after Envoy responds again: %v, %q", ok, reason)
	}
	if d, n := r.UnresponsiveFor(); d != 0 || n != 0 {
		t.Errorf("silent for %v, %d queries, although Envoy responds", d, n)
	}
}

func TestBootstrapWithoutStatisticsIsReportedAsCause(t *testing.T) {
	var e slowEnvoy
	r := NewReadiness(ReadinessConfig{Admin: e.serve(t), Dynamic: true})
	if c := r.Condition(t.Context()); c.OK || !strings.Contains(c.Reason, "do not include cluster_manager.cds") || !strings.Contains(c.Remedy, "stats_matcher") {
		t.Errorf("%+v", c)
	}
}

func TestConcurrentProbesShareOneQuery(t *testing.T) {
	var e slowEnvoy
	var c fakeClock
	r := NewReadiness(ReadinessConfig{Admin: e.serve(t), Now: c.now})
	ask := func(n int) {
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if ok, reason := r.Check(t.Context()); !ok {
					t.Error(reason)
				}
			})
		}
		all.Wait()
	}
	ask(1000)
	if n := e.requests.Load(); n != 2 { // /ready and, the first time, /stats
		t.Errorf("1000 probes queried Envoy %d times, want 2", n)
	}
	c.advance(readyCacheTTL)
	ask(1000)
	if n := e.requests.Load(); n != 3 {
		t.Errorf("1000 probes later it was queried %d times, want 3", n)
	}
}

// TestCancelledCallerDoesNotAffectOthers verifies that a query continues after the caller that started it is cancelled.
func TestCancelledCallerDoesNotAffectOthers(t *testing.T) {
	var e slowEnvoy
	r := NewReadiness(ReadinessConfig{Admin: e.serve(t)})
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _ = r.Check(gone)
	if ok, reason := r.Check(t.Context()); !ok {
		t.Error(reason)
	}
}
