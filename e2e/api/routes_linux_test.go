package api

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const versions = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
`

// checkf returns an error with the message unless ok is true.
func checkf(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func TestRoutesOfVirtualServices(t *testing.T) {
	runRows(t, []row{
		{name: "matches", ports: []string{"http"}, docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  http:
  - match: [{uri: {prefix: /Case}, ignoreUriCase: true, method: {exact: GET}}]
    route: [{destination: {host: $HOST, subset: v2}}]
  - match: [{headers: {x-a: {regex: "b+"}}, withoutHeaders: {x-no: {}}}]
    route: [{destination: {host: $HOST, subset: v2}}]
  - match: [{queryParams: {q: {exact: "1"}}, sourceNamespace: default, port: 80}]
    route: [{destination: {host: $HOST, subset: v2}}]
  - match: [{sourceLabels: {app: other}}]
    directResponse: {status: 299, body: {string: other}}
  - match: [{uri: {exact: /old}}]
    redirect: {uri: /new, authority: elsewhere.example, redirectCode: 307, scheme: https}
  - match: [{uri: {prefix: /users/}}]
    rewrite: {uriRegexRewrite: {match: "/users/([0-9]+)/(.*)", rewrite: '/\2/of/\1'}, authority: inner.example}
    route: [{destination: {host: $HOST, subset: v1}}]
  - headers: {request: {set: {x-set: "yes"}, remove: [x-gone]}, response: {add: {x-back: there}}}
    corsPolicy: {allowOrigins: [{prefix: "https://good."}], allowMethods: [GET, PUT], maxAge: 5s, allowCredentials: true}
    route: [{destination: {host: $HOST, subset: v1}, headers: {request: {add: {x-of: v1}}}}]
`, check: func(w *testMesh, host string) error {
			u := "http://" + host
			for _, c := range []struct {
				path, server string
				headers      []string
			}{
				{"/cAsE/x", "v2", nil}, {"/", "v2", []string{"X-A", "bb"}}, {"/", "v1", []string{"X-A", "bb", "X-No", "1"}}, {"/?q=1", "v2", nil}, {"/?q=2", "v1", nil},
			} {
				if got, err := w.get("client", u+c.path, c.headers...); err != nil || got.Server != c.server {
					return fmt.Errorf("%s %v: %s %v", c.path, c.headers, toJSON(got), err)
				}
			}
			if _, err := w.expectStatus(299, "other", u+".default/"); err != nil {
				return err
			}
			if got, err := w.expectStatus(307, "client", u+"/old"); err != nil || got.Header.Get("Location") != "https://elsewhere.example/new" {
				return fmt.Errorf("%v %v", got.Header, err)
			}
			if got, err := w.expectStatus(200, "client", u+"/users/7/cart"); err != nil || got.Path != "/cart/of/7" || got.Host != "inner.example" {
				return fmt.Errorf("%s %v", toJSON(got), err)
			}
			got, err := w.expectStatus(200, "client", u+"/", "X-Gone", "1", "Origin", "https://good.example")
			h := got.Echo.Header
			if err != nil || h.Get("X-Set") != "yes" || h.Get("X-Gone") != "" || h.Get("X-Of") != "v1" ||
				got.Header.Get("X-Back") != "there" || got.Header.Get("Access-Control-Allow-Origin") != "https://good.example" {
				return fmt.Errorf("%s %v %v", toJSON(got), got.Header, err)
			}
			preflight, err := w.send("client", request{Method: "OPTIONS", URL: u + "/", Headers: map[string]string{
				"Origin": "https://good.example", "Access-Control-Request-Method": "PUT"}})
			return checkf(err == nil && preflight.Server == "" && preflight.Header.Get("Access-Control-Max-Age") == "5", "preflight: %v %v", preflight.Header, err)
		}},
		{name: "time outs retries faults and mirrors", ports: []string{"http"}, docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  http:
  - {match: [{uri: {prefix: /slow}}], timeout: 0.3s, route: [{destination: {host: $HOST, subset: v1}}]}
  - {match: [{uri: {prefix: /abort}}], fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: $HOST, subset: v1}}]}
  - {match: [{uri: {prefix: /delay}}], fault: {delay: {fixedDelay: 0.5s, percentage: {value: 100}}}, route: [{destination: {host: $HOST, subset: v1}}]}
  - match: [{uri: {prefix: /retry}}]
    retries: {attempts: 4, perTryTimeout: 2s, retryOn: "503", backoff: 10ms, retryRemoteLocalities: true, retryIgnorePreviousHosts: false}
    route: [{destination: {host: $HOST, subset: v1}}]
  - {match: [{uri: {prefix: /once}}], retries: {attempts: 0}, route: [{destination: {host: $HOST, subset: v1}}]}
  - match: [{uri: {prefix: /mirror}}]
    mirrors: [{destination: {host: $HOST, subset: v2}, percentage: {value: 100}}, {destination: {host: guarded}, percentage: {value: 100}}]
    route: [{destination: {host: $HOST, subset: v1}}]
  - route: [{destination: {host: $HOST, subset: v1}, weight: 25}, {destination: {host: $HOST, subset: v2}, weight: 75}]
`, check: func(w *testMesh, host string) error {
			u := "http://" + host
			if _, err := w.expectStatus(504, "client", u+"/slow", "X-Reply-Delay", "3s"); err != nil {
				return err
			}
			if _, err := w.expectStatus(418, "client", u+"/abort"); err != nil {
				return err
			}
			start := time.Now()
			if _, err := w.expectStatus(200, "client", u+"/delay"); err != nil || time.Since(start) < 500*time.Millisecond {
				return fmt.Errorf("delayed by %s: %v", time.Since(start), err)
			}
			key := fmt.Sprint(start.UnixNano())
			if _, err := w.expectStatus(200, "client", u+"/retry", "X-Test", key+"r", "X-Reply-Status", "503", "X-Reply-Fail-First", "3"); err != nil {
				return err
			}
			if n, err := w.count("v1", key+"r"); err != nil || n != 4 {
				return fmt.Errorf("%d tries, %v", n, err)
			}
			if _, err := w.expectStatus(503, "client", u+"/once", "X-Test", key+"o", "X-Reply-Status", "503"); err != nil {
				return err
			}
			if n, err := w.count("v1", key+"o"); err != nil || n != 1 {
				return fmt.Errorf("%d tries where none is to be repeated, %v", n, err)
			}
			if _, err := w.expectStatus(200, "client", u+"/mirror", "X-Test", key+"m"); err != nil {
				return err
			}
			for _, server := range []string{"v2", "guarded"} {
				n := 0
				for range 100 { // copies are sent in parallel to the request, not before its response
					if n, _ = w.count(server, key+"m"); n > 0 {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				if n != 1 {
					return fmt.Errorf("%d copies at %s", n, server)
				}
			}
			seen, err := w.countByServer(120, "client", u+"/")
			return checkf(err == nil && seen["v1"]+seen["v2"] == 120 && seen["v1"] > 10 && seen["v1"] < 55, "shares %v %v", seen, err)
		}},
		{name: "delegates", ports: []string{"http"}, docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  http:
  - {name: root, match: [{uri: {prefix: /team}}], headers: {request: {set: {x-root: "1"}}}, delegate: {name: $HOST-team, namespace: other}}
  - route: [{destination: {host: $HOST, subset: v1}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST-team, namespace: other}
spec:
  http:
  - {match: [{uri: {prefix: /elsewhere}}], directResponse: {status: 299}}
  - {match: [{uri: {prefix: /team/two}}], route: [{destination: {host: $HOST.default.svc.cluster.local, subset: v2}}]}
  - {match: [{headers: {x-teapot: {exact: "1"}}}], directResponse: {status: 418}}
`, check: func(w *testMesh, host string) error {
			u := "http://" + host
			if got, err := w.expectStatus(200, "client", u+"/team/two/x"); err != nil || got.Server != "v2" || got.Echo.Header.Get("X-Root") != "1" {
				return fmt.Errorf("%s %v", toJSON(got), err)
			}
			if _, err := w.expectStatus(418, "client", u+"/team/one", "X-Teapot", "1"); err != nil {
				return err
			}
			for _, path := range []string{"/team/one", "/elsewhere"} { // what the delegate does not match uses the next route
				if got, err := w.expectStatus(200, "client", u+path); err != nil || got.Server != "v1" {
					return fmt.Errorf("%s: %s %v", path, toJSON(got), err)
				}
			}
			return nil
		}, wantProblem: "spec.http[0] of the delegate is left out"},
		{name: "connections by port and weight", ports: []string{"tcp", "tls"}, docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  tcp:
  - {match: [{port: 9000, destinationSubnets: [10.255.0.0/16]}], route: [{destination: {host: $HOST, subset: v1}}]}
  - {match: [{port: 9000, sourceLabels: {app: client}}], route: [{destination: {host: $HOST, subset: v2}}]}
  tls:
  - {match: [{port: 443, sniHosts: [a.tls.example]}], route: [{destination: {host: $HOST, subset: v1}}]}
  - {match: [{port: 443, sniHosts: [b.tls.example]}], route: [{destination: {host: $HOST, subset: v2}}]}
`, check: func(w *testMesh, host string) error {
			for range 6 {
				if received, err := w.sendLine("client", host+":9000", "hello", 1); err != nil || received[0] != "v2 heard hello" {
					return fmt.Errorf("%q %v", received, err)
				}
				for sni, server := range map[string]string{"a.tls.example": "v1", "b.tls.example": "v2"} {
					if got, err := w.getTLS("client", host+":443", sni); err != nil || got.Server != server {
						return fmt.Errorf("%s: %s %v", sni, toJSON(got), err)
					}
				}
			}
			return nil
		}},
	})
}

func TestTrafficPoliciesOfDestinationRules(t *testing.T) {
	const policy = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST, trafficPolicy: `
	// stays checks that requests with one header value reach one server, and that many values reach both.
	stays := func(header string, value func(i int) string) func(w *testMesh, host string) error {
		return func(w *testMesh, host string) error {
			all := map[string]int{}
			for i := range 12 {
				var first string
				for range 4 {
					got, err := w.expectStatus(200, "client", "http://"+host+"/?k="+value(i), header, value(i))
					if err != nil {
						return err
					}
					if first == "" {
						first = got.Server
					}
					if got.Server != first {
						return fmt.Errorf("%s goes to %s and %s", value(i), first, got.Server)
					}
				}
				all[first]++
			}
			return checkf(len(all) == 2, "all go to %v", all)
		}
	}
	numbered := func(i int) string { return fmt.Sprintf("user-%d", i*7919) }
	runRows(t, []row{
		{name: "hash by header", ports: []string{"http"}, docs: policy + `{loadBalancer: {consistentHash: {httpHeaderName: x-user, maglev: {tableSize: 1009}}}}}`, check: stays("X-User", numbered)},
		{name: "hash by query", ports: []string{"http"}, docs: policy + `{loadBalancer: {consistentHash: {httpQueryParameterName: k, ringHash: {minimumRingSize: 128}}}}}`, check: stays("X-Any", numbered)},
		{name: "hash by cookie", ports: []string{"http"}, docs: policy + `{loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 0s}}}}}`,
			check: stays("Cookie", func(i int) string { return "user=" + numbered(i) })},
		{name: "zones as callers are spread over them", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-callers}
spec: {selector: {app: client}, ports: [{name: tcp, port: 1}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: $HOST-twin}
spec: {address: 192.0.2.51, labels: {app: client}, locality: near/b}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.aware, $HOST.plain]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints:
  - {address: $V1, locality: near/a, serviceAccount: server}
  - {address: $V2, locality: near/b, serviceAccount: server}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST.aware, trafficPolicy: {loadBalancer: {zoneAwareLbSetting: {minClusterSize: 1}}}}
`, check: func(w *testMesh, host string) error {
			near, err := w.countByServer(20, "client", "http://"+host+".aware/")
			if err != nil || near["v1"] != 20 {
				return fmt.Errorf("aware of zones: %v %w", near, err)
			}
			both, err := w.countByServer(20, "client", "http://"+host+".plain/")
			return checkf(err == nil && both["v1"] > 0 && both["v2"] > 0, "unaware of them: %v %v", both, err)
		}},
		{name: "failover and distribution by locality", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.over, $HOST.dist]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints:
  - {address: $V1, locality: near/a, serviceAccount: server}
  - {address: $V2, locality: far/b, serviceAccount: server}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST-over}
spec: {host: $HOST.over, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 30s, maxEjectionPercent: 100}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST-dist}
spec: {host: $HOST.dist, trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: "near/*", to: {"near/*": 20, "far/*": 80}}]}}}}
`, check: func(w *testMesh, host string) error {
			seen, err := w.countByServer(100, "client", "http://"+host+".dist/")
			if err != nil || seen["v1"] < 5 || seen["v1"] > 45 || seen["v2"] < 50 {
				return fmt.Errorf("distributed %v %v", seen, err)
			}
			seen, err = w.countByServer(20, "client", "http://"+host+".over/")
			if err != nil || seen["v1"] != 20 && seen["v2"] != 20 {
				return fmt.Errorf("near by %v %v", seen, err)
			}
			if seen["v1"] == 20 { // until it fails
				if _, err := w.get("client", "http://"+host+".over/", "X-Reply-Status", "500"); err != nil {
					return err
				}
				return fmt.Errorf("v1 is still called")
			}
			return nil
		}},
		{name: "plaintext by rule", ports: []string{"http"}, docs: policy + `{tls: {mode: DISABLE}}}`, check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+"/")
			return checkf(err == nil && got.Echo.Header.Get("X-Forwarded-Client-Cert") == "", "%s %v", toJSON(got), err)
		}},
		{name: "pools overflow", ports: []string{"http"}, docs: policy + `{connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1, http2MaxRequests: 1}}}}`, check: func(w *testMesh, host string) error {
			refused := make(chan bool)
			for range 6 {
				go func() {
					got, _ := w.get("client", "http://"+host+"/", "X-Reply-Delay", "500ms")
					refused <- got.Status == 503 && strings.Contains(got.Body, "overflow")
				}()
			}
			n := 0
			for range 6 {
				if <-refused {
					n++
				}
			}
			return checkf(n > 0, "none of six at once was refused")
		}},
		{name: "tls to a server outside", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [outside.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_TLS}]
  endpoints: [{address: $OUTSIDE}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: outside.example, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: $DIR/ca.crt, sni: outside.example, subjectAltNames: [outside.example]}}}
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "client", "http://outside.example/")
			return checkf(err == nil && got.Server == "outside", "%s %v", toJSON(got), err)
		}},
	})
}
