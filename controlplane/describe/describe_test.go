package describe

import (
	"bytes"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

const described = `
apiVersion: v1
kind: Service
metadata: {name: page, namespace: shop}
spec: {selector: {app: page}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: page, namespace: shop}
spec:
  hosts: [page]
  http:
  - match:
    - {uri: {prefix: /a}, withoutHeaders: {x-old: {}}, queryParams: {v: {exact: "2"}}, sourceLabels: {app: b}, port: 80}
    - {scheme: {exact: https}, ignoreUriCase: true, uri: {exact: /B}, sourceNamespace: far, gateways: [mesh]}
    route: [{destination: {host: page}}]
  tcp:
  - {match: [{destinationSubnets: [10.0.0.0/8], port: 3306}], route: [{destination: {host: page}}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: both, namespace: shop}
spec:
  selector: {matchLabels: {app: page}}
  rules:
  - from: [{source: {namespaces: [one, two], notPrincipals: [a/b]}}, {source: {ipBlocks: [10.0.0.0/8]}}]
    to: [{operation: {methods: [GET, HEAD], paths: [/x]}}, {operation: {notPorts: ["81"]}}]
    when: [{key: "request.headers[a]", values: [b, c], notValues: [d]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: me, jwksUri: "https://me.example/keys", audiences: [shop]}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: told, namespace: shop}
spec:
  accessLogging: [{match: {mode: CLIENT}, providers: [{name: envoy}], filter: {expression: response.code >= 400}}]
  tracing: [{randomSamplingPercentage: 5}]
  metrics: [{overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {request_host: {value: request.host}, source_app: {operation: REMOVE}}}]}]
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: module, namespace: shop}
spec: {url: "file:///m.wasm", phase: AUTHN, match: [{mode: SERVER, ports: [{number: 80}]}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: patch, namespace: shop}
spec: {workloadSelector: {labels: {app: page}}, configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: page.shop}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: start, namespace: shop}
spec: {concurrency: 2, environmentVariables: {SECRET: hidden}}
`

// Each kind of document is described in words, in which what holds together and what holds by itself can be told apart.
func TestDocumentsAreDescribedInWords(t *testing.T) {
	resources, problems := config.Parse("a.yaml", []byte(described))
	for _, p := range problems {
		if p.Severity == config.Error {
			t.Fatal(p)
		}
	}
	store := config.NewMemoryStore()
	store.Put(resources...)
	d := Workload(snapshot.Build(nil, snapshot.Inputs{Store: store, Mesh: &meshconfig.MeshConfig{TrustDomainAliases: []string{"former.example"}}}, nil), &translate.Proxy{
		Type: translate.Sidecar, Name: "page-1", Namespace: "shop", Labels: map[string]string{"app": "page"}, Interception: translate.Redirect,
	})
	var out bytes.Buffer
	if err := d.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`requests with path "/a"… and not a header x-old and query parameter v "2" and port 80 and callers labelled app=b, or path in any case "/B" and scheme "https" and callers of namespace far and arrival by mesh go to page`,
		"connections with destination 10.0.0.0/8 and port 3306 go to page",
		"for workloads labelled app=page",
		"ALLOW: from (not a/b and namespace one or two) or (address 10.0.0.0/8) to (GET or HEAD and /x) or (not port 81) when request.headers[a] is b or c and not request.headers[a] is d",
		"tokens of me are verified, for shop, by keys of https://me.example/keys",
		"access log of calls to envoy of what is response.code >= 400",
		"traces, of 5% of the requests",
		"metric REQUEST_COUNT: request_host is request.host and without source_app",
		"requests pass the module file:///m.wasm, in phase AUTHN; without the module nothing passes",
		"only of callers port 80",
		"MERGE of CLUSTER, SIDECAR_OUTBOUND, service page.shop",
		"2 threads when the proxy starts",
		"identities of former.example are taken for those of the mesh's own trust domain",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the description lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "hidden") {
		t.Error("the value of a variable is shown")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
