package envoy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// dynamicBootstrap has its clusters and listeners from %s; the cluster "dead" leads to a port where nobody listens.
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

const deadSource = `{api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: dead}}]}, resource_api_version: V3, initial_fetch_timeout: 600s}`

const (
	noResources      = "resources: []\n"
	clusterNeedsEDS  = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: needs-eds, type: EDS, eds_cluster_config: {eds_config: " + deadSource + "}}\n"
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
        rds: {route_config_name: the-routes, config_source: ` + deadSource + `}
        http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`
	listenerRefused = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener, name: bad}\n"
)

func TestReadinessSaysWhatEnvoyWaitsFor(t *testing.T) {
	for _, c := range []struct {
		name, cds, lds string // files, or ADS without any
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

func TestReadinessOfAnEnvoyThatIsGoneOrDrainsIsTakenBack(t *testing.T) {
	p, admin := startEnvoy(t, staticBootstrap)
	r := NewReadiness(ReadinessConfig{Admin: admin})
	awaitReady(t, p, admin)
	if ok, reason := r.Check(t.Context()); !ok {
		t.Fatal(reason)
	}
	if _, err := admin.do(t.Context(), http.MethodPost, "/healthcheck/fail", nil, mostAnswer); err != nil {
		t.Fatal(err)
	}
	if ok, reason := r.Check(t.Context()); ok || !strings.Contains(reason, "DRAINING") {
		t.Errorf("draining: %v, %q", ok, reason)
	}
	p.Stop(ended())
	if ok, reason := r.Check(t.Context()); ok || !strings.Contains(reason, "does not listen on its admin address") {
		t.Errorf("gone: %v, %q", ok, reason)
	}
}

func TestEnvoyThatIsBusyKeepsItsReadinessAndOneThatStartsDoesNotGetIt(t *testing.T) {
	busy := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-busy:
			<-r.Context().Done()
		default:
			_, _ = fmt.Fprintln(w, "LIVE")
		}
	})
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"stats":[{"name":"listener_manager.workers_started","value":1}]}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	admin := NewAdmin(strings.TrimPrefix(server.URL, "http://"))
	defer admin.Close()
	old, fresh := NewReadiness(ReadinessConfig{Admin: admin}), NewReadiness(ReadinessConfig{Admin: admin})
	if ok, reason := old.Check(t.Context()); !ok {
		t.Fatal(reason)
	}
	close(busy)
	if ok, reason := old.Check(within(t, 20e6)); !ok {
		t.Errorf("a busy Envoy is told as %q", reason)
	}
	if ok, reason := fresh.Check(within(t, 20e6)); ok || !strings.Contains(reason, "does not answer") {
		t.Errorf("an Envoy that never answered: %v, %q", ok, reason)
	}
}
