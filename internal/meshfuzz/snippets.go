package meshfuzz

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// snippet is a document with several versions.
type snippet struct {
	kind                  config.Kind
	apiVersion, namespace string
	name                  string
	versions              []object
}

const (
	telemetry  = "telemetry.istio.io/v1"
	extensions = "extensions.istio.io/v1alpha1"

	// keySet is the public key of the example in RFC 7517.
	keySet = `{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","kid":"1"}]}`
)

// snippets are documents that are independent of all other generated documents.
var snippets = []snippet{
	{config.RequestAuthentication, security, "ns0", "jwt", []object{
		{"jwtRules": []any{object{"issuer": "one", "jwks": keySet}}},
		{"selector": object{"matchLabels": object{"app": "s0"}}, "jwtRules": []any{object{"issuer": "two", "jwks": keySet, "fromParams": []any{"t"}}}},
	}},
	{config.RequestAuthentication, security, "istio-system", "jwt", []object{
		{"jwtRules": []any{object{"issuer": "root", "jwks": keySet, "forwardOriginalToken": true}}},
	}},
	{config.Telemetry, telemetry, "istio-system", "all", []object{
		{"accessLogging": []any{object{"disabled": true}}},
		{"tracing": []any{object{"randomSamplingPercentage": 10}}},
	}},
	{config.Telemetry, telemetry, "ns1", "mine", []object{
		{"accessLogging": []any{object{"providers": []any{object{"name": "envoy"}}}}},
		{"selector": object{"matchLabels": object{"app": "s1"}}, "metrics": []any{object{"overrides": []any{object{"disabled": true}}}}},
	}},
	{config.EnvoyFilter, "networking.istio.io/v1alpha3", "ns0", "patch", []object{
		{"configPatches": []any{object{"applyTo": "CLUSTER", "match": object{"context": "SIDECAR_OUTBOUND"},
			"patch": object{"operation": "MERGE", "value": object{"connect_timeout": "7s"}}}}},
		{"workloadSelector": object{"labels": object{"app": "s0"}}, "configPatches": []any{object{"applyTo": "VIRTUAL_HOST",
			"match": object{"context": "SIDECAR_OUTBOUND"}, "patch": object{"operation": "MERGE", "value": object{"include_request_attempt_count": true}}}}},
	}},
	{config.EnvoyFilter, "networking.istio.io/v1alpha3", "istio-system", "patch", []object{
		{"configPatches": []any{object{"applyTo": "NETWORK_FILTER", "match": object{"context": "SIDECAR_INBOUND",
			"listener": object{"filterChain": object{"filter": object{"name": "envoy.filters.network.http_connection_manager"}}}},
			"patch": object{"operation": "MERGE", "value": object{"typed_config": object{
				"@type":                        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"server_header_transformation": "PASS_THROUGH"}}}}}},
	}},
	{config.WasmPlugin, extensions, "ns1", "plugin", []object{
		{"url": "oci://registry.invalid/plugin:v1", "phase": "AUTHN"},
		{"url": "oci://registry.invalid/plugin:v2", "phase": "STATS", "selector": object{"matchLabels": object{"app": "s1"}}},
	}},
	{config.ProxyConfig, "networking.istio.io/v1beta1", "ns0", "config", []object{{"concurrency": 1}, {"concurrency": 2}}},
	{config.Secret, "v1", "ns0", "shop", []object{
		{"type": "Opaque", "stringData": object{"ca.crt": certificates[0]}}, {"type": "Opaque", "stringData": object{"ca.crt": certificates[1]}},
	}},
	{config.WorkloadGroup, networking, "ns2", "group", []object{
		{"template": object{"serviceAccount": "s2"}}, {"metadata": object{"labels": object{"app": "s2"}}, "template": object{"serviceAccount": "s2"}},
	}},
}

// clusterSnippets are objects of a Kubernetes cluster: a Service without a selector has the endpoints of their slice.
var clusterSnippets = []snippet{
	{config.Service, "v1", "ns0", "pods", []object{
		{"ports": []any{object{"name": "http", "port": 80}}},
		{"ports": []any{object{"name": "http", "port": 80}}, "trafficDistribution": "PreferSameNode"},
		{"ports": []any{object{"name": "http", "port": 80}}, "internalTrafficPolicy": "Local", "clusterIP": "None"},
	}},
	{config.EndpointSlice, "discovery.k8s.io/v1", "ns0", "pods-1", []object{
		podSlice(object{"addresses": []any{"10.250.0.1"}, "targetRef": object{"kind": "Pod", "name": "pod-0"}}),
		podSlice(object{"addresses": []any{"10.250.0.1"}, "nodeName": "node", "targetRef": object{"kind": "Pod", "name": "pod-0"}}, object{"addresses": []any{"10.250.0.2"}, "nodeName": "node"}),
	}},
	{config.Pod, "v1", "ns0", "pod-0", []object{
		{"metadata": object{"name": "pod-0", "namespace": "ns0", "labels": object{"app": "s0", "version": "v0"}}, "spec": object{"nodeName": "node"}, "status": object{"podIP": "10.250.0.1"}},
		{"metadata": object{"name": "pod-0", "namespace": "ns0", "labels": object{"app": "s3"}}, "spec": object{"subdomain": "pods", "serviceAccountName": "s3"}, "status": object{"podIP": "10.250.0.1"}},
	}},
	{config.Node, "v1", "", "node", []object{
		{"metadata": object{"name": "node", "labels": object{"topology.kubernetes.io/region": "r1"}}},
		{"metadata": object{"name": "node", "labels": object{"topology.kubernetes.io/region": "r2", "topology.kubernetes.io/zone": "z"}}},
	}},
	{config.Namespace, "v1", "", "ns0", []object{
		{"metadata": object{"name": "ns0", "annotations": object{"networking.istio.io/traffic-distribution": "PreferClose"}}},
		{"metadata": object{"name": "ns0", "labels": object{"topology.istio.io/network": "n"}}},
	}},
}

var allSnippets = slices.Concat(snippets, clusterSnippets)

func podSlice(endpoints ...any) object {
	return object{
		"metadata":    object{"name": "pods-1", "namespace": "ns0", "labels": object{config.ServiceNameLabel: "pods"}},
		"addressType": "IPv4", "ports": []any{object{"name": "http", "port": 8080}}, "endpoints": endpoints,
	}
}

func (m *Mesh) editSnippet() (Edit, bool) {
	s := pick(m, allSnippets)
	if m.oneIn(3) {
		return m.remove(s.kind, s.namespace, s.name)
	}
	version := pick(m, s.versions)
	if s.kind == config.Secret || s.kind.IsClusterState() {
		return m.putFields(s.kind, s.apiVersion, s.namespace, s.name, version)
	}
	return m.put(s.kind, s.apiVersion, s.namespace, s.name, version)
}

// certificates are CA certificates whose private keys were discarded.
var certificates = []string{`-----BEGIN CERTIFICATE-----
MIIBeDCCAR2gAwIBAgIUKohSjO3XvH+Svibb+u5ybxUtyMIwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFdGVzdDAwIBcNMjYxMTIxMjEyMjU1WhgPMjEyNjEwMjgyMTIy
NTVaMBAxDjAMBgNVBAMMBXRlc3QwMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
+a4kVJxQp5OgXdC2D40l+3rcbtYHLfwuw3rJD28CHWqyKaPzZP4VeoEEaYmceiLf
63xR77NR5Vh0glaFLNgl4qNTMFEwHQYDVR0OBBYEFE51iiRDeIOUAwDhPTKUJKRj
SBZ7MB8GA1UdIwQYMBaAFE51iiRDeIOUAwDhPTKUJKRjSBZ7MA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAOpvGgFIi1Mn4xdiBpcBKFqOb2BJ8OrN
RtH1/jXJUIpXAiEAjdZv3wGY4M5byHFUI2eWXhRweNejfSjxAWvayUvgSbw=
-----END CERTIFICATE-----
`, `-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUPTJZDhws7NGebHvny3MWVKQhkNUwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFdGVzdDEwIBcNMjYxMTIxMjEyMjU1WhgPMjEyNjEwMjgyMTIy
NTVaMBAxDjAMBgNVBAMMBXRlc3QxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
dwKikPfy83COQaM1w09e8KP0FXeUCt89/WlO0Jj24bnew1OzqfPiA5oM4wT6gjNq
0DK6hF7uvzIefFjYDkdKAqNTMFEwHQYDVR0OBBYEFBwmoO5lKQZG1NmIGrc33ujP
5hDwMB8GA1UdIwQYMBaAFBwmoO5lKQZG1NmIGrc33ujP5hDwMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAMXFHLu1hSszECdIbzyqslbY3zIfHkql
xsrU/ayE7kLzAiBPZjn7kHQn7ErF1718p+hWcsAmfNa6wcE5/t2typYmWQ==
-----END CERTIFICATE-----
`}
