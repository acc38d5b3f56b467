package analysis_test

import (
	"strings"
	"testing"
)

// TestInvalidReferencesAreReportedWithPositionAndRemedy: no other check finds these mistakes.
func TestInvalidReferencesAreReportedWithPositionAndRemedy(t *testing.T) {
	const mesh = `apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews, subsets: [{name: v1}, {name: v2}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
`
	for name, tc := range map[string]struct{ document, want string }{
		"host": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec:
  hosts: [reviews]
  http:
  - route:
    - destination:
        host: revews
`, `mesh.yaml:24:15: warning: VirtualService shop/x: spec.http[0].route[0].destination.host: "revews": there is no service revews.shop.svc.cluster.local: requests to it are answered with 503 (did you mean "reviews"?)`},
		"mirror": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: [reviews], http: [{mirror: {host: shadow.example.com}, route: [{destination: {host: reviews}}]}]}
`, `spec.http[0].mirror.host: "shadow.example.com": there is no service shadow.example.com: the copies of requests are dropped (add a Service or a ServiceEntry of this name, or correct the host)`},
		"subset": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews, subset: version-three}}]}]}
`, `spec.http[0].route[0].destination.subset: "version-three": reviews.shop.svc.cluster.local has no such subset: requests to it are answered with 503 (use one of the subsets of DestinationRule shop/reviews: v1, v2)`},
		"subset, nearly": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews, subset: v3}}]}]}
`, `did you mean "v1"?`},
		"port": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews, port: {number: 8080}}}]}]}
`, `spec.http[0].route[0].destination.port.number: "8080": reviews.shop.svc.cluster.local has no port 8080: requests to it are answered with 503 (use one of its ports: 80)`},
		"gateway": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: ["*"], gateways: [egde], http: [{route: [{destination: {host: reviews}}]}]}
`, `spec.gateways[0]: "egde": there is no Gateway shop/egde: the routes do not apply to it (did you mean "edge"?)`},
		"rule's host": {`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: x, namespace: shop}
spec: {hosts: [reveiws], http: [{route: [{destination: {host: reviews}}]}]}
`, `spec.hosts[0]: "reveiws": there is no service reveiws.shop.svc.cluster.local (did you mean "reviews"?)`},
		"DestinationRule's host": {`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: x, namespace: other}
spec: {host: reviews}
`, `DestinationRule other/x: spec.host: "reviews": there is no service reviews.other.svc.cluster.local: the rule has no effect`},
		"Sidecar's host": {`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: x, namespace: other}
spec: {egress: [{hosts: ["shop/review.shop.svc.cluster.local"]}]}
`, `Sidecar other/x: spec.egress[0].hosts[0]: "shop/review.shop.svc.cluster.local": there is no service with this host (did you mean "reviews.shop.svc.cluster.local"?)`},
		"CUSTOM": {`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: x, namespace: shop}
spec: {action: CUSTOM, provider: {name: opa}, rules: [{}]}
`, `spec.provider.name: "opa": the mesh configuration has no extension provider with this name, so proxies deny the requests that match the policy's rules`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, mesh+tc.document)
			got := m.check()
			if len(got) != 1 || !strings.Contains(got[0].String(), tc.want) {
				t.Errorf("problems:\n%s\nnot:\n%s", problems(m), tc.want)
			}
		})
	}
	if p := problems(newTestMesh(t, nil, mesh)); p != "" {
		t.Errorf("problems of what is right:\n%s", p)
	}
}
