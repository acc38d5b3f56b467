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

const applied = `
apiVersion: v1
kind: Service
metadata: {name: page, namespace: shop}
spec: {selector: {app: page}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-data, port: 7000}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: first, namespace: shop}
spec: {hosts: [page], http: [{redirect: {authority: elsewhere.example, uri: /there}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: second, namespace: shop}
spec: {hosts: [page], tcp: [{route: [{destination: {host: page}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: way-in, namespace: shop}
spec: {hosts: [page.example], gateways: [edge/door], http: [{route: [{destination: {host: page, port: {number: 80}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec: {selector: {istio: door}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: page, namespace: shop}
spec: {workloadSelector: {labels: {app: page}}, ingress: [{port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:9090"}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: page, namespace: shop}
spec: {selector: {matchLabels: {app: page}}, portLevelMtls: {7000: {mode: DISABLE}}}
`

// A description contains only documents that apply: no HTTP routes for TCP ports, and no sidecar rules for gateways.
func TestOnlyApplicableDocumentsAreDescribed(t *testing.T) {
	for _, c := range []struct {
		proxy      translate.Proxy
		has, lacks []string
	}{
		{
			proxy: translate.Proxy{Type: translate.Sidecar, Name: "page-1", Namespace: "shop", Labels: map[string]string{"app": "page"}},
			has: []string{`Serves page.shop.svc.cluster.local:80 (HTTP, on port 8080 of the workload, forwarded to 127.0.0.1:9090)
  accepts mutual TLS only (STRICT), as PeerAuthentication istio-system/mesh specifies
  clients apply VirtualService shop/first  a.yaml:7:1
      requests are redirected to elsewhere.example to "/there"

Serves page.shop.svc.cluster.local:7000 (TCP, on port 7000 of the workload)
  accepts plaintext only (DISABLE), as PeerAuthentication shop/page specifies

`, `VirtualService shop/second  a.yaml:12:1
      has no effect: VirtualService shop/first applies to page.shop.svc.cluster.local, because it comes first in name order
`, "ALLOW_ANY"},
			lacks: []string{"way-in"},
		},
		{
			proxy: translate.Proxy{Type: translate.Router, Name: "door-1", Namespace: "edge", Labels: map[string]string{"istio": "door"}},
			has: []string{`Rules for requests of the workload
  VirtualService shop/way-in  a.yaml:17:1
      requests to edge/door for page.example
      requests go to page:80
`},
			lacks: []string{"shop/first", "ALLOW_ANY"},
		},
	} {
		text := describeText(t, applied, &c.proxy)
		for _, want := range c.has {
			if !strings.Contains(text, want) {
				t.Errorf("the description of %s lacks %q:\n%s", c.proxy.Name, want, text)
			}
		}
		for _, not := range c.lacks {
			if strings.Contains(text, not) {
				t.Errorf("the description of %s has %q:\n%s", c.proxy.Name, not, text)
			}
		}
	}
}

// The rule has no effect on requests to the alias, only on requests to its other hosts.
func TestRuleForAnAliasIsNotDescribed(t *testing.T) {
	text := describeText(t, `
apiVersion: v1
kind: Service
metadata: {name: page, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: page}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: leaf, namespace: shop}
spec: {type: ExternalName, externalName: page.shop.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: alias, namespace: shop}
spec: {hosts: [leaf], http: [{directResponse: {status: 451}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: both, namespace: shop}
spec: {hosts: [leaf, page], http: [{directResponse: {status: 418}}]}
`, &translate.Proxy{Type: translate.Sidecar, Name: "page-1", Namespace: "shop", Labels: map[string]string{"app": "page"}})
	for _, want := range []string{
		"VirtualService shop/alias  a.yaml:12:1\n      has no effect: leaf.shop.svc.cluster.local is an alias of page.shop.svc.cluster.local, and the rules for the latter apply\n",
		"VirtualService shop/both  a.yaml:17:1\n      calls to page.shop.svc.cluster.local\n      requests receive a direct response with status 418\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the description lacks %q:\n%s", want, text)
		}
	}
}

// describeText returns the description of a proxy's workload as text.
func describeText(t *testing.T, documents string, p *translate.Proxy) string {
	t.Helper()
	resources, problems := config.Parse("a.yaml", []byte(documents))
	for _, p := range problems {
		if p.Severity == config.Error {
			t.Fatal(p)
		}
	}
	store := config.NewMemoryStore()
	store.Put(resources...)
	mesh := &meshconfig.MeshConfig{RootNamespace: "istio-system", TrustDomainAliases: []string{"former.example"}}
	p.Interception = translate.Redirect
	var out bytes.Buffer
	if err := Workload(snapshot.Build(nil, snapshot.Inputs{Store: store, Mesh: mesh}, nil), p).Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The text distinguishes conditions that must all match from alternatives.
func TestDocumentsAreDescribedInWords(t *testing.T) {
	text := describeText(t, described, &translate.Proxy{Type: translate.Sidecar, Name: "page-1", Namespace: "shop", Labels: map[string]string{"app": "page"}})
	for _, want := range []string{
		`requests with path "/a"… and not a header x-old and query parameter v "2" and port 80 and clients with the labels app=b, or path (case-insensitive) "/B" and scheme "https" and clients in namespace far and gateway mesh go to page`,
		"connections with destination 10.0.0.0/8 and port 3306 go to page",
		"for workloads with the labels app=page",
		"ALLOW: from (not a/b and namespace one or two) or (address 10.0.0.0/8) to (GET or HEAD and /x) or (not port 81) when request.headers[a] is b or c and not request.headers[a] is d",
		"tokens of me are verified, for shop, with keys from https://me.example/keys",
		"access log for outbound traffic, provider envoy, requests with response.code >= 400",
		"traces, 5% of the requests",
		"metric REQUEST_COUNT: request_host is request.host and without source_app",
		"requests pass through the Wasm module file:///m.wasm, in phase AUTHN; they are refused if the module cannot be loaded",
		"only for inbound traffic on port 80",
		"MERGE of CLUSTER, SIDECAR_OUTBOUND, service page.shop",
		"2 worker threads when the proxy starts",
		"identities of former.example are treated as those of the mesh's own trust domain",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the description lacks %q", want)
		}
	}
	if strings.Contains(text, "hidden") {
		t.Error("the description contains the value of an environment variable")
	}
	if t.Failed() {
		t.Log(text)
	}
}
