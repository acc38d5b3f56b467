package translate_test

import "testing"

// TestAliasRequestsReachService with the service's mutual TLS, policies and rules. It also uses an alias of an alias,
// and changes the alias while Envoy runs.
func TestAliasRequestsReachService(t *testing.T) {
	forEachEnvoyVersion(t, 179001, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, strictEverywhere, `
apiVersion: v1
kind: Service
metadata: {name: books, namespace: front}
spec: {type: ExternalName, externalName: server.back.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: shelf, namespace: far}
spec: {type: ExternalName, externalName: books.front.svc.cluster.local}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: back}
spec: {rules: [{from: [{source: {principals: [cluster.local/ns/front/sa/client]}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: server, namespace: back}
spec: {host: server, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: back}
spec:
  hosts: [server]
  http:
  - {match: [{uri: {prefix: /teapot}}], directResponse: {status: 418}}
  - {match: [{uri: {prefix: /old}}], rewrite: {uri: /new}, route: [{destination: {host: books.front.svc.cluster.local, subset: v1}}]}
  - {match: [{uri: {prefix: /none}}], route: [{destination: {host: server, subset: v2}}]}
  - {route: [{destination: {host: server}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: books, namespace: front}
spec: {hosts: [books], http: [{directResponse: {status: 451}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: back}
spec: {hosts: [other.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: NET.3.1, ports: {http: 8080}}]}
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.serveApp("NET.3.1:8080", "other", nil)
		w.tcp("NET.2.2:3306", "hello\n")
		w.proxy("sidecar client.front NET.1.1 app=client UPSTREAM_LISTENERS=shelf.far:3306=NET.1.16:3306", "front/client")
		w.proxy(serverNode, "back/server")
		call := func(url string) func() httpResult { return func() httpResult { return w.request(clientPort, url) } }

		for _, name := range []string{"server.back", "books", "books.front", "books.front.svc", "books.front.svc.cluster.local", "books.front.svc.cluster.local:80", "shelf.far", "shelf.far.svc.cluster.local"} {
			w.expect(200, "server HTTP/1.1 /x host="+name, call("http://"+name+"/x"))
			w.expect(200, "URI=spiffe://cluster.local/ns/front/sa/client", call("http://"+name+"/x"))
			w.expect(200, "server HTTP/1.1 /new", call("http://"+name+"/old"))
			w.expect(418, "", call("http://"+name+"/teapot"))
			w.expect(503, "", call("http://"+name+"/none"))
		}
		w.expect(200, "hello", func() httpResult { return w.firstLine("NET.1.16:3306") })

		w.change(`
apiVersion: v1
kind: Service
metadata: {name: books, namespace: front}
spec: {type: ExternalName, externalName: other.example}
`)
		for _, name := range []string{"other.example", "books", "shelf.far"} {
			w.expect(200, "other HTTP/1.1 /teapot host="+name, call("http://"+name+"/teapot"))
		}
		w.expect(418, "", call("http://server.back/teapot"))
	})
}
