package hostile

import (
	"fmt"
	"strings"
)

// socketMesh is the mesh that the rows of agentSocketAttacks share. Its gateway edge has a listener at port 8000 whose routes
// lead to the sockets of its own agent and of another workload's, as a tenant's ServiceEntry would. At port 8443 it serves
// with its certificate, which has a life of seconds.
var socketMesh = sharedMesh{name: "sockets", topology: socketTopology, documents: socketDocuments()}

const (
	socketNetwork = "127.198"
	socketGateway = socketNetwork + ".1.1"
)

const socketTopology = `
apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: sockets}
spec:
  network: ` + socketNetwork + `.0.0/16
  config: documents.yaml
  workloads:
  - {name: edge, type: gateway, namespace: edge}
  - {name: other, type: gateway, namespace: other}
`

func socketDocuments() string {
	sockets := map[string]string{}
	for name, dir := range map[string]string{"own": ".", "other": "../other"} {
		sockets[name+"-sds"] = dir + "/var/run/secrets/workload-spiffe-uds/socket"
		sockets[name+"-xds"] = dir + "/etc/istio/proxy/XDS"
	}
	var clusters, hosts strings.Builder
	for name, path := range sockets {
		fmt.Fprintf(&clusters, socketCluster, name, path)
		fmt.Fprintf(&hosts, `{name: %s, domains: [%[1]s], routes: [{match: {prefix: /}, route: {cluster: %[1]s}}]}, `, name)
	}
	return fmt.Sprintf(socketFilter, socketGateway, clusters.String(), hosts.String())
}

const socketCluster = `
          - name: %[1]s
            type: STATIC
            connect_timeout: 1s
            typed_extension_protocol_options:
              envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
                "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
                explicit_http_config: {http2_protocol_options: {}}
            load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[2]s}}}}]}]}`

const socketFilter = `
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: rotation, namespace: istio-system}
spec:
  environmentVariables: {SECRET_TTL: 12s}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: way-in, namespace: edge}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch:
      operation: MERGE
      value:
        static_resources:
          clusters:%[2]s
          listeners:
          - name: way-in
            address: {socket_address: {address: %[1]s, port_value: 8000}}
            filter_chains:
            - filters:
              - name: envoy.filters.network.http_connection_manager
                typed_config: &hcm
                  "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                  stat_prefix: way-in
                  route_config: {virtual_hosts: [%[3]s]}
                  http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          - name: identity
            address: {socket_address: {address: %[1]s, port_value: 8443}}
            filter_chains:
            - filters: [{name: envoy.filters.network.http_connection_manager, typed_config: *hcm}]
              transport_socket:
                name: tls
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
                  common_tls_context:
                    tls_certificate_sds_secret_configs:
                    - {name: default, sds_config: {resource_api_version: V3, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}}
`
