package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// envoyConfig has what a control plane gives a sidecar, as far as capture is concerned: a listener for what leaves the pod
// and one for what comes to it, each of which sends connections on to where they were meant to go.
const envoyConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "%[1]s", port_value: 15001}}
    listener_filters: [&dst {name: original_dst, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: outbound, http_filters: [&router {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {request_headers_to_add: [{header: {key: x-through, value: outbound}}], response_headers_to_add: [{header: {key: x-through, value: outbound}}],
        virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: outbound}}]}]}}}]}]
  - name: inbound
    address: {socket_address: {address: "%[1]s", port_value: 15006}}
    listener_filters: [*dst]
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: inbound, http_filters: [*router],
      route_config: {request_headers_to_add: [{header: {key: x-through, value: inbound}}], response_headers_to_add: [{header: {key: x-through, value: inbound}}],
        virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: inbound}}]}]}}}]}]
  clusters:
  - {name: outbound, type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED, connect_timeout: 2s}
  - name: inbound
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 2s
    upstream_bind_config: {source_address: {address: "%[2]s", port_value: 0}}
`

// startEnvoy starts a real Envoy as the pod's sidecar. It comes from the test's machine with the libraries that it needs.
func (s *sandbox) startEnvoy(t *testing.T, listen, passThrough string) (id string) {
	t.Helper()
	config := filepath.Join(s.node.dir, s.config.Metadata.Name+"-envoy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, listen, passThrough), 0o644); err != nil {
		t.Fatal(err)
	}
	envoy, err := filepath.EvalSymlinks(testenv.Envoy(t))
	if err != nil {
		t.Fatal(err)
	}
	mounts := []*cri.Mount{
		{HostPath: envoy, ContainerPath: "/envoy", Readonly: true},
		{HostPath: config, ContainerPath: "/envoy.yaml", Readonly: true},
	}
	for _, dir := range []string{"/lib", "/lib64"} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, &cri.Mount{HostPath: real, ContainerPath: dir, Readonly: true})
	}
	return s.start(t, container{name: "istio-proxy", user: 1337, mounts: mounts,
		args: []string{"/envoy", "-c", "/envoy.yaml", "--log-level", "warning", "--concurrency", "1", "--disable-hot-restart"}})
}
