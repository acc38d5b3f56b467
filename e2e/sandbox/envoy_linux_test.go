package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// envoyConfig is the part of a sidecar's configuration that is relevant for capture: an outbound and an inbound
// listener, which forward connections to their original destination.
const envoyConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "LISTEN", ipv4_compat: true, port_value: 15001}}
    listener_filters: [&dst {name: original_dst, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: outbound, http_filters: [&router {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {request_headers_to_add: [{header: {key: x-through, value: outbound}}], response_headers_to_add: [{header: {key: x-through, value: outbound}}],
        virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: outbound}}]}]}}}]}]
  - name: inbound
    address: {socket_address: {address: "LISTEN", ipv4_compat: true, port_value: 15006}}
    transparent: TPROXY
    listener_filters: [*dst ORIGINAL_SRC]
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
    BIND
`

// proxy is the setup of a sidecar's Envoy for one interception mode.
type proxy struct {
	listen     string
	tproxy     bool // as root in the proxy's group, as injectors do
	user       int64
	privileges []string
}

// Proxies of pods with REDIRECT, with TPROXY, and with both address families.
var (
	redirected  = proxy{listen: "0.0.0.0", user: 1337}
	transparent = proxy{listen: "0.0.0.0", tproxy: true, user: 0, privileges: []string{"NET_ADMIN"}}
	dualStack   = proxy{listen: "::", user: 1337}
)

func (p proxy) config() string {
	source, bind := "", `upstream_bind_config: {source_address: {address: 127.0.0.6, port_value: 0}, extra_source_addresses: [{address: {address: "::6", port_value: 0}}]}`
	if p.tproxy {
		source = `, {name: original_src, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc, mark: 1337}}`
		bind = ""
	}
	text := strings.NewReplacer("LISTEN", p.listen, "TPROXY", strconv.FormatBool(p.tproxy), " ORIGINAL_SRC", source, "BIND", bind).Replace(envoyConfig)
	if p.listen != "::" {
		text = strings.ReplaceAll(text, "ipv4_compat: true, ", "")
	}
	return text
}

// startEnvoy starts a real Envoy as the pod's sidecar. The binary and its libraries are those of the test machine.
func (s *sandbox) startEnvoy(t *testing.T, p proxy) (id string) {
	t.Helper()
	config := filepath.Join(s.node.dir, s.config.Metadata.Name+"-envoy.yaml")
	if err := os.WriteFile(config, []byte(p.config()), 0o644); err != nil {
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
	return s.start(t, container{name: "istio-proxy", user: p.user, group: 1337, privileges: p.privileges, mounts: mounts,
		args: []string{"/envoy", "-c", "/envoy.yaml", "--log-level", "warning", "--concurrency", "1", "--disable-hot-restart"}})
}
