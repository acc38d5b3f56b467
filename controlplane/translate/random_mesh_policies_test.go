package translate_test

import (
	"fmt"
	"strings"
)

// policyGenerators generate policies, telemetry settings and patches.
var policyGenerators = []func(documentGenerator) string{
	documentGenerator.authorization, documentGenerator.authorization, documentGenerator.authentication, documentGenerator.peers, documentGenerator.telemetry, documentGenerator.telemetry,
	documentGenerator.filter, documentGenerator.filter, documentGenerator.plugin, documentGenerator.proxyConfig, documentGenerator.group, documentGenerator.secret, documentGenerator.mesh, documentGenerator.keysOfIssuers,
}

func ofSecurity(kind, name, namespace, spec string) string {
	return document("security.istio.io/v1", kind, name, namespace, spec)
}

func (c documentGenerator) authorization() string {
	rule := c.pick("from: [{source: {"+strings.TrimSuffix(c.pickFields("notPrincipals: ['*/sa/b']", "ipBlocks: [10.0.0.0/8, '::1']", "notIpBlocks: [10.1.0.0/16]", "remoteIpBlocks: [1.2.3.4]", "notRemoteIpBlocks: [2.0.0.0/8]", "requestPrincipals: ['*']", "notRequestPrincipals: [i0/x]", "notNamespaces: [two]", "notServiceAccounts: [two/b]", "trustDomains: [cluster.local]", "notTrustDomains: [x]"), ", ")+"}}]",
		"to: [{operation: {"+strings.TrimSuffix(c.pickFields("notHosts: ['*.x']", "methods: [GET]", "notMethods: [PUT]", "notPaths: ['/y*', '/{*}/z']", "notPorts: ['81']", "paths: ['/a/{**}']"), ", ")+"}}]",
		"when: [{key: 'request.headers[x]', notValues: ['a*']}, {key: source.ip, values: [10.0.0.0/8]}, {key: connection.sni, values: ['*.example']}]", "when: [{key: 'request.auth.audiences', values: [x]}, {key: destination.port, notValues: ['90']}]", "to: [{operation: {paths: [/x], ports: ['80']}}]", "from: [{source: {namespaces: [one]}}]", "from: [{source: {principals: ['cluster.local/ns/one/sa/a']}}]",
		"when: [{key: 'request.auth.claims[iss]', values: [i0]}]", "to: [{operation: {hosts: [a.example]}}]", "from: [{source: {serviceAccounts: [one/a]}}]")
	return ofSecurity("AuthorizationPolicy", c.numbered("p", 4), c.anyNamespace(), fmt.Sprintf("%s%s, rules: [{%s}]", c.selector(),
		c.pick("action: ALLOW", "action: DENY", "action: AUDIT", "action: CUSTOM, provider: {name: checked}"), rule))
}

func (c documentGenerator) authentication() string {
	return ofSecurity("RequestAuthentication", c.numbered("j", 3), c.anyNamespace(), fmt.Sprintf("%sjwtRules: [{issuer: i%d, jwksUri: 'https://%s/keys'%s}]",
		c.selector(), c.IntN(3), c.pick("a.example", "red.one.svc.cluster.local", "b.example:81"), c.pick("", "", ", forwardOriginalToken: true", ", audiences: [x, y], fromHeaders: [{name: a, prefix: 'b '}], fromParams: [c], fromCookies: [d]",
			", outputPayloadToHeader: p, outputClaimToHeaders: [{header: h, claim: sub}], timeout: 3s", ", spaceDelimitedClaims: [x]")))
}

func (c documentGenerator) peers() string {
	some := c.pick("", "", "selector: {matchLabels: {app: a}}, portLevelMtls: {81: {mode: DISABLE}}, ", "selector: {matchLabels: {app: b}}, ")
	return ofSecurity("PeerAuthentication", c.pick("default", "q"), c.anyNamespace(), some+"mtls: {mode: "+c.pick("STRICT", "PERMISSIVE", "DISABLE", "UNSET")+"}")
}

func (c documentGenerator) telemetry() string {
	return document("telemetry.istio.io/v1", "Telemetry", c.pick("t", "u"), c.anyNamespace(), c.pick("", "selector: {matchLabels: {app: a}}, ", "targetRefs: [{kind: Service, group: '', name: red}], ")+
		c.pick("accessLogging: [{providers: [{name: envoy}]}]", "accessLogging: [{disabled: true}]", "accessLogging: [{providers: [{name: logs}], filter: {expression: 'response.code >= 400'}}]",
			"tracing: [{providers: [{name: spans}], randomSamplingPercentage: 50}]", "metrics: [{providers: [{name: prometheus}]}]",
			"metrics: [{providers: [{name: prometheus}], overrides: [{match: {metric: REQUEST_COUNT, mode: CLIENT}, tagOverrides: {x: {value: \"'y'\"}}}]}]", "metrics: [{overrides: [{disabled: true}]}]",
			"tracing: [{providers: [{name: spans}], customTags: {a: {literal: {value: b}}, c: {header: {name: d, defaultValue: e}}, f: {environment: {name: G}}}, useRequestIdForTraceSampling: false}]",
			"tracing: [{match: {mode: SERVER}, disableSpanReporting: true}]", "metrics: [{providers: [{name: prometheus}], reportingInterval: 9s}]",
			"accessLogging: [{match: {mode: CLIENT}, providers: [{name: envoy}, {name: logs}]}]", "tracing: [{enableIstioTags: false, disableContextPropagation: true}]"))
}

func (c documentGenerator) filter() string {
	patch := c.pick(
		"{applyTo: CLUSTER, match: {cluster: {service: a.example}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}",
		"{applyTo: CLUSTER, match: {cluster: {portNumber: 81, subset: v1}}, patch: {operation: REMOVE}}",
		"{applyTo: CLUSTER, match: {context: GATEWAY}, patch: {operation: ADD, value: {name: extra, type: STATIC, connect_timeout: 1s}}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: 'a.example:80'}}}, patch: {operation: MERGE, value: {retry_policy: {num_retries: 3}}}}",
		"{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: more, domains: [more.example], routes: []}}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: 'b.example:80'}}}, patch: {operation: REMOVE}}",
		"{applyTo: ROUTE_CONFIGURATION, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: MERGE, value: {most_specific_header_mutations_wins: true}}}",
		"{applyTo: LISTENER, match: {listener: {portNumber: 80}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1000}}}",
		"{applyTo: LISTENER, match: {context: SIDECAR_INBOUND}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 2000}}}",
		"{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 81}}, patch: {operation: REMOVE}}",
		"{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, patch: {operation: INSERT_BEFORE, value: {name: lua, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}",
		"{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 90}}, patch: {operation: MERGE, value: {transport_socket_connect_timeout: 3s}}}",
		"{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 80}}, patch: {operation: ADD, value: {name: more, filter_chain_match: {server_names: [a.example, m.example], transport_protocol: tls}, filters: [{name: e, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}}}",
		"{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}, patch: {operation: MERGE, value: {typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, server_name: x}}}}",
		"{applyTo: LISTENER_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {listenerFilter: envoy.filters.listener.tls_inspector}}, patch: {operation: REMOVE}}",
		"{applyTo: HTTP_FILTER, match: {context: GATEWAY}, patch: {operation: ADD, filterClass: AUTHZ, value: {name: lua, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}",
		"{applyTo: HTTP_ROUTE, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: 'a.example:80'}}}, patch: {operation: INSERT_FIRST, value: {match: {prefix: /patched}, direct_response: {status: 204}}}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: 'b.example:80'}}}, patch: {operation: MERGE, value: {domains: [a.example]}}}",
		"{applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: MERGE, value: {circuit_breakers: {thresholds: [{max_connections: 3}]}}}}",
		"{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: ANY}}}}, patch: {operation: MERGE, value: {stat_prefix: x}}}",
		"{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: own, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}")
	return document("networking.istio.io/v1alpha3", "EnvoyFilter", c.pick("f", "g"), c.anyNamespace(), c.pick("", "workloadSelector: {labels: {app: a}}, ", "priority: 5, ",
		"targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], ")+"configPatches: ["+patch+"]")
}

// plugin returns a WasmPlugin whose type is fixed, because Envoy rejects another type until it has accepted the
// listeners for that type.
func (c documentGenerator) plugin() string {
	name, spec := c.numbered("w", 2), c.selector()
	if c.IntN(5) == 0 {
		name, spec = "n0", spec+"type: NETWORK, "
	}
	return document("extensions.istio.io/v1alpha1", "WasmPlugin", name, c.anyNamespace(), spec+
		c.pick("", "phase: AUTHN, ", "phase: AUTHZ, ", "phase: STATS, ", "match: [{mode: CLIENT}], ", "match: [{ports: [{number: 80}]}], ", "priority: 7, ",
			"failStrategy: FAIL_OPEN, ", "pluginName: x, pluginConfig: {a: [1, {b: c}]}, ", "vmConfig: {env: [{name: A, value: b}]}, ")+c.pick("url: 'file:///a.wasm'", "url: 'oci://registry.example/b:1'"))
}

func (c documentGenerator) proxyConfig() string {
	return document("networking.istio.io/v1beta1", "ProxyConfig", c.pick("c", "d"), c.anyNamespace(), c.pick("", "selector: {matchLabels: {app: a}}, ")+
		c.pick("concurrency: 2", "concurrency: 0", "environmentVariables: {A: b}"))
}

func (c documentGenerator) group() string {
	return ofNetworking("WorkloadGroup", c.numbered("wg", 2), c.namespace(), fmt.Sprintf("metadata: {labels: %s}, template: {serviceAccount: a%s}", c.labels(), c.maybe(", ports: {p80: 8080}")))
}

func (c documentGenerator) secret() string {
	data := c.pick("{tls.crt: $CERTIFICATE, tls.key: $KEY}", "{ca.crt: $AUTHORITY}", "{tls.crt: $CERTIFICATE, tls.key: $KEY, ca.crt: $AUTHORITY}")
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\ndata: %s", c.pick("cred", "cred-cacert"), c.anyNamespace(), data)
}

// mesh returns a random mesh configuration.
func (c documentGenerator) mesh() string {
	return meshEdit + c.pick("{}", "rootNamespace: one", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}", "accessLogFile: /dev/stdout", "enableAutoMtls: false", "enableTracing: true",
		"defaultServiceExportTo: ['.']", "defaultVirtualServiceExportTo: ['.']", "defaultDestinationRuleExportTo: ['.']", "h2UpgradePolicy: UPGRADE", "trustDomainAliases: [old.example]",
		"extensionProviders: [{name: checked, envoyExtAuthzGrpc: {service: a.example, port: 80}}]", "extensionProviders: [{name: checked, envoyExtAuthzHttp: {service: one/b.example, port: 81}}]",
		"extensionProviders: [{name: logs, envoyOtelAls: {service: red.one.svc.cluster.local, port: 80}}, {name: spans, opentelemetry: {service: b.example, port: 81}}]",
		"extensionProviders: [{name: logs, envoyOtelAls: {service: ext.one.svc.cluster.local, port: 80}}, {name: spans, opentelemetry: {service: two/ext.two.svc.cluster.local, port: 81}}]",
		"meshMTLS: {minProtocolVersion: TLSV1_3}", "localityLbSetting: {enabled: true, failover: [{from: r1, to: r2}]}", "defaultProviders: {metrics: [prometheus]}", "trustDomain: other.example")
}

// keysOfIssuers returns random fetched keys of issuers.
func (c documentGenerator) keysOfIssuers() string {
	return keysEdit + c.pick("", "https://a.example/keys", "https://b.example:81/keys", "https://red.one.svc.cluster.local/keys") + " " + c.pick("1", "2")
}

// Prefixes of edits that are not documents.
const (
	meshEdit = "MeshConfig: "
	keysEdit = "Keys: "
)
