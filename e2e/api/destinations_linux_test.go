package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// outsideService is a ServiceEntry of the server outside of the mesh, by a name of the row's own.
func outsideService(ports string) string {
	return `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [` + ports + `]
  endpoints: [{address: $OUTSIDE}]
---
`
}

func TestDestinationRules(t *testing.T) {
	rule := func(host, policy string) string {
		return `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: ` + host + `, trafficPolicy: ` + policy + `}
`
	}
	runRows(t, []row{
		{name: "in turn", ports: []string{"http"}, docs: rule("$HOST", "{loadBalancer: {simple: ROUND_ROBIN}}"), check: func(w *testMesh, host string) error {
			seen, err := w.countByServer(10, "client", "http://"+host+"/")
			return checkf(err == nil && seen["v1"] == 5 && seen["v2"] == 5, "%v %v", seen, err)
		}},
		{name: "hash by address", ports: []string{"http"}, docs: rule("$HOST", "{loadBalancer: {consistentHash: {useSourceIp: true}}}"), check: func(w *testMesh, host string) error {
			seen, err := w.countByServer(10, "client", "http://"+host+"/")
			return checkf(err == nil && (seen["v1"] == 10 || seen["v2"] == 10), "%v %v", seen, err)
		}},
		{name: "rule for a port", ports: []string{"http", "http2"}, docs: rule("$HOST", "{portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]}"), check: func(w *testMesh, host string) error {
			for port, mutual := range map[string]bool{"80": false, "82": true} {
				got, err := w.expectStatus(200, "client", "http://"+host+":"+port+"/")
				if err != nil || (got.Echo.Header.Get("X-Forwarded-Client-Cert") != "") != mutual {
					return fmt.Errorf("port %s: %s %w", port, toJSON(got), err)
				}
			}
			return nil
		}},
		{name: "connections end after so many requests", ports: []string{"http"}, docs: rule("$HOST", "{connectionPool: {http: {maxRequestsPerConnection: 1}}}"), check: func(w *testMesh, host string) error {
			if _, err := w.countByServer(8, "client", "http://"+host+"/"); err != nil {
				return err
			}
			requests, connections, err := w.countCalls("client", "outbound|80||"+host+".default.svc.cluster.local")
			return checkf(err == nil && requests >= 8 && connections == requests, "%d requests in %d connections, %v", requests, connections, err)
		}},
		{name: "http2 between sidecars", ports: []string{"http"}, check: func(w *testMesh, host string) error {
			if _, err := w.countByServer(8, "client", "http://"+host+"/"); err != nil {
				return err
			}
			stats, err := w.stats("client", "cluster.outbound|80||"+host+".default.svc.cluster.local")
			return checkf(err == nil && stats["upstream_cx_http2_total"] > 0 && stats["upstream_cx_http1_total"] == 0, "%v %v", stats, err)
		}},
		{name: "certificate of the mesh by rule", ports: []string{"http"}, docs: rule("$HOST", "{tls: {mode: ISTIO_MUTUAL}}"), check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+"/")
			return checkf(err == nil && strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client"), "%s %v", toJSON(got), err)
		}},
		{name: "certificate of its own", ports: []string{"http"}, docs: outsideService(`{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_TLS}`) +
			rule("$HOST.example", "{tls: {mode: MUTUAL, clientCertificate: $DIR/someone.crt, privateKey: $DIR/someone.key, caCertificates: $DIR/ca.crt, sni: outside.example, subjectAltNames: [outside.example]}}"),
			check: func(w *testMesh, host string) error {
				got, err := w.expectStatus(200, "client", "http://"+host+".example/")
				return checkf(err == nil && got.Server == "outside" && got.Peer == "spiffe://outside/someone", "%s %v", toJSON(got), err)
			}},
		{name: "certificate of another name is refused", ports: []string{"http"}, docs: outsideService(`{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_TLS}`) +
			rule("$HOST.example", "{tls: {mode: SIMPLE, caCertificates: $DIR/ca.crt, sni: outside.example, subjectAltNames: [elsewhere.example]}}"),
			check: func(w *testMesh, host string) error {
				if _, err := w.expectStatus(503, "client", "http://"+host+".example/"); err != nil {
					return err
				}
				stats, err := w.stats("client", "cluster.outbound|80||"+host+".example")
				return checkf(err == nil && stats["ssl.fail_verify_san"] > 0, "%v %v", stats, err)
			}},
		{name: "tunnel", ports: []string{"http"}, docs: outsideService(`{number: 3128, name: tcp, targetPort: $OUTSIDE_HTTP}`) + `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-far}
spec:
  hosts: [$HOST.far.example]
  addresses: [240.7.7.2]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{number: 4242, name: tcp}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: [$HOST.far.example], tcp: [{match: [{port: 4242}], route: [{destination: {host: $HOST.example, subset: tunnel, port: {number: 3128}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST.example, subsets: [{name: tunnel, trafficPolicy: {tunnel: {protocol: CONNECT, targetHost: far.example, targetPort: 4243}}}]}
`, check: func(w *testMesh, host string) error {
			received, err := w.sendLine("client", "240.7.7.2:4242", "hello", 2)
			return checkf(err == nil && received[0] == "outside tunnels to far.example:4243" && received[1] == "outside heard hello", "%q %v", received, err)
		}},
		{name: "retry budget", ports: []string{"http"}, docs: rule("$HOST", "{retryBudget: {percent: 0, minRetryConcurrency: 1}}") + `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: [$HOST], http: [{retries: {attempts: 3, retryOn: "503", backoff: 1ms}, route: [{destination: {host: $HOST}}]}]}
`, check: func(w *testMesh, host string) error {
			key, done := fmt.Sprint(time.Now().UnixNano()), make(chan error)
			const callers = 16 // all fail at the same time, and only one may retry at a time
			for range callers {
				go func() {
					_, err := w.expectStatus(503, "client", "http://"+host+"/", "X-Test", key, "X-Reply-Status", "503", "X-Reply-Delay", "500ms")
					done <- err
				}()
			}
			var errs []error
			for range callers {
				errs = append(errs, <-done)
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			one, err1 := w.count("v1", key)
			two, err2 := w.count("v2", key)
			return checkf(err1 == nil && err2 == nil && one+two > callers && one+two < 2*callers, "%d tries of %d requests, %v %v", one+two, callers, err1, err2)
		}},
		{name: "warm-up", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: $HOST}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: $HOST-1}
spec: {address: $V1, labels: {app: $HOST}, serviceAccount: server}
---` + rule("$HOST.example", "{loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 600s, minimumPercent: 1}}}"), later: `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: $HOST-2}
spec: {address: $V2, labels: {app: $HOST}, serviceAccount: server}
`, check: checkWarmUp},
	})
}

// checkWarmUp verifies that of two endpoints in warm-up, the newer one receives fewer requests: the share of each grows
// with its age.
func checkWarmUp(w *testMesh, host string) error {
	url := "http://" + host + ".example/"
	if seen, err := w.countByServer(2, "client", url); err != nil || seen["v1"] == 0 {
		return fmt.Errorf("before: %v %w", seen, err)
	}
	before := w.sinceFirstCheck(host)
	if before < 6*time.Second {
		return fmt.Errorf("the first endpoint is there for %s only", before)
	}
	if err := w.applyLater(host); err != nil {
		return err
	}
	added, all := time.Now(), map[string]int{}
	for all["v2"] == 0 || all["v1"]+all["v2"] < 40 {
		seen, err := w.countByServer(4, "client", url)
		for name, n := range seen {
			all[name] += n
		}
		if err == nil && time.Since(added) > before/2 {
			err = fmt.Errorf("it takes too long to see who is called: %v", all)
		}
		if err != nil {
			return errors.Join(err, w.removeLater(host))
		}
	}
	if share := float64(all["v2"]) / float64(all["v1"]+all["v2"]); share > 0.4 {
		return errors.Join(fmt.Errorf("the new endpoint has as much as the old one: %v", all), w.removeLater(host))
	}
	return nil
}
