package translate_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// scrape returns an Envoy's metrics with the labels that the agent unpacks.
func (e *envoy) scrape() string {
	e.t.Helper()
	var out strings.Builder
	m := exposition.NewMerger(&out, exposition.Text)
	result, err := m.Copy(strings.NewReader(e.get("/stats/prometheus?usedonly")), exposition.Source{Unpack: true, Once: true})
	if err = errors.Join(err, m.Close()); err != nil || result.Invalid > 0 || result.Repeated > 0 {
		e.t.Fatalf("the metrics are invalid: %+v %v", result, err)
	}
	return out.String()
}

// series returns the samples of an Envoy's metric with all specified labels.
func (e *envoy) series(metric string, labels ...string) []string {
	var out []string
	for _, line := range strings.Split(e.scrape(), "\n") {
		if !strings.HasPrefix(line, metric+"{") {
			continue
		}
		all := true
		for _, l := range labels {
			name, value, _ := strings.Cut(l, "=")
			all = all && regexp.MustCompile(`[{,]`+name+`="`+regexp.QuoteMeta(value)+`"`).MatchString(line)
		}
		if all {
			out = append(out, line)
		}
	}
	return out
}

func (e *envoy) counts(value, metric string, labels ...string) {
	e.t.Helper()
	eventually(e.t, func() string {
		found := e.series(metric, labels...)
		if len(found) == 1 && strings.HasSuffix(found[0], " "+value) {
			return ""
		}
		return fmt.Sprintf("%s%v is not %s:\n%s\nin\n%s", metric, labels, value, strings.Join(found, "\n"), strings.Join(e.series(metric), "\n"))
	})
}

// measuringEnvoys runs a test with the Envoy versions that support the standard metrics, with and without packed labels.
// node is appended to the nodes of proxies.
func measuringEnvoys(t *testing.T, network int, run func(t *testing.T, version, node string, network int)) {
	for i, version := range []string{testenv.EnvoyVersion, "1.38.3"} {
		for j, node := range []string{"", " PILOTFISH_UNPACKS_LABELS=true"} {
			t.Run(version+node, func(t *testing.T) {
				t.Parallel()
				run(t, version, node, network+10*i+5*j)
			})
		}
	}
}

// TestStandardMetricLabels of both sidecars, for requests and TCP connections. Telemetry documents change the labels.
func TestStandardMetricLabels(t *testing.T) {
	measuringEnvoys(t, 176001, func(t *testing.T, version, node string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/bad" {
				rw.WriteHeader(http.StatusTeapot)
			}
			fmt.Fprintf(rw, "peer=%q", r.Header.Get("X-Pilotfish-Peer"))
		})
		echo := w.listen("NET.2.2:3306")
		go func() {
			for {
				c, err := echo.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
			}
		}()
		client, server := w.proxy(clientNode+" version=v7 CLUSTER_ID=east"+node, "front/client"), w.proxy(serverNode+node, "back/server")
		const known = "client"
		caller := known
		if version != testenv.EnvoyVersion {
			caller = "unknown" // this Envoy cannot limit the number of series, so the metrics ignore peer metadata
		}

		w.expect(200, `peer=""`, func() httpResult { return w.request(clientPort, serverURL, "X-Pilotfish-Peer=me;myself;i;and;me;too") })
		w.expect(418, "", func() httpResult { return w.request(clientPort, "http://server.back/bad") })
		both := []string{"destination_workload=server-1", "destination_workload_namespace=back", "destination_app=server", "destination_version=v1",
			"destination_service=server.back.svc.cluster.local", "destination_service_name=server", "destination_service_namespace=back",
			"destination_canonical_service=server", "destination_canonical_revision=v1", "request_protocol=http", "response_flags=-",
			"source_principal=spiffe://cluster.local/ns/front/sa/client", "destination_principal=spiffe://cluster.local/ns/back/sa/server",
			"destination_cluster=Kubernetes"}
		client.counts("1", "envoy_istio_requests_total", append(both, "reporter=source", "response_code=200", "source_workload=client",
			"source_workload_namespace=front", "source_app=client", "source_canonical_service=client", "source_version=v7", "source_cluster=east", "connection_security_policy=unknown")...)
		client.counts("1", "envoy_istio_requests_total", append(both, "reporter=source", "response_code=418")...)
		server.counts("1", "envoy_istio_requests_total", append(both, "reporter=destination", "response_code=200",
			"source_workload="+caller, "connection_security_policy=mutual_tls")...)
		if caller == known {
			server.counts("1", "envoy_istio_requests_total", "response_code=418", "source_workload=client", "source_workload_namespace=front",
				"source_app=client", "source_version=v7", "source_canonical_service=client", "source_canonical_revision=v7", "source_cluster=east")
		}
		for _, metric := range []string{"request_duration_milliseconds", "request_bytes", "response_bytes"} {
			server.counts("1", "envoy_istio_"+metric+"_count", "reporter=destination", "response_code=200", "source_workload="+caller,
				"destination_service=server.back.svc.cluster.local")
		}

		// In plaintext, the sidecar ignores peer metadata.
		w.expect(200, `peer=""`, func() httpResult { return w.request("", "http://NET.2.1:8080/x", "X-Pilotfish-Peer=a;b;c;d;e;f") })
		server.counts("1", "envoy_istio_requests_total", "connection_security_policy=none", "source_workload=unknown", "source_principal=unknown",
			"source_cluster=unknown", "source_canonical_revision=latest")

		w.expect(200, "", func() httpResult { return w.request(clientPort, serverURL, "Content-Type=application/grpc+proto") })
		client.counts("1", "envoy_istio_requests_total", "request_protocol=grpc", "reporter=source", "source_principal=spiffe://cluster.local/ns/front/sa/client")
		server.counts("1", "envoy_istio_requests_total", "request_protocol=grpc", "reporter=destination", "destination_workload=server-1")

		// A client with a certificate but no sidecar can send any peer metadata. The sidecar drops invalid names and
		// cuts long ones. The agent encodes invalid metadata.
		for _, lie := range []string{"a\xffb;c;d;e;f;g", `a"b;c;d;e;f;g`, "nothing of the sort", strings.Repeat("x", 5000) + ";y"} {
			w.requestAsPeer(serverURL, "spiffe://cluster.local/ns/front/sa/liar", lie)
		}
		switch {
		case caller == known && node != "":
			for _, workload := range []string{"invalid:a%FFb%3Bc%3Bd%3Be%3Bf%3Bg", "invalid:a%5C%22b%3Bc%3Bd%3Be%3Bf%3Bg", "invalid:nothing%20of%20the%20sort", "invalid:" + strings.Repeat("x", 512)} {
				server.counts("1", "envoy_istio_requests_total", "source_principal=spiffe://cluster.local/ns/front/sa/liar", "source_workload="+workload,
					"source_workload_namespace=unknown", "source_canonical_revision=latest")
			}
		case caller == known:
			server.counts("2", "envoy_istio_requests_total", "source_principal=spiffe://cluster.local/ns/front/sa/liar", "source_workload=", "source_workload_namespace=c")
			server.counts("1", "envoy_istio_requests_total", "source_principal=spiffe://cluster.local/ns/front/sa/liar", "source_workload=", "source_workload_namespace=")
			server.counts("1", "envoy_istio_requests_total", "source_principal=spiffe://cluster.local/ns/front/sa/liar", "source_workload="+strings.Repeat("x", 253), "source_workload_namespace=y")
		}
		if text := server.scrape(); !utf8.ValidString(text) {
			t.Error("the metrics contain invalid UTF-8")
		}

		w.talk("NET.1.16:3306", "hello")
		client.counts("1", "envoy_istio_tcp_connections_opened_total", "reporter=source", "destination_workload=server-1", "request_protocol=tcp",
			"destination_cluster=Kubernetes")
		client.counts("1", "envoy_istio_tcp_connections_closed_total", "reporter=source", "destination_service_name=server")
		server.counts("5", "envoy_istio_tcp_received_bytes_total", "source_principal=spiffe://cluster.local/ns/front/sa/client", "connection_security_policy=mutual_tls")
		server.counts("5", "envoy_istio_tcp_sent_bytes_total", "reporter=destination", "destination_service_name=server")

		// Labels of external destinations are unknown.
		w.expect(503, "", func() httpResult { return w.request(clientPort, "http://NET.5.1:8080/") })
		unknown := []string{"destination_workload=unknown", "destination_workload_namespace=unknown", "destination_service=unknown",
			"destination_service_name=PassthroughCluster", "destination_service_namespace=unknown"}
		client.counts("1", "envoy_istio_request_bytes_count", append(unknown, "response_code=503")...)
		client.counts("1", "envoy_istio_requests_total", append(unknown, "response_code=503", "destination_app=unknown", "destination_version=unknown",
			"destination_canonical_service=unknown", "destination_canonical_revision=latest", "destination_cluster=unknown",
			"destination_principal=unknown", "source_principal=unknown")...)

		// A document changes labels, and disables one metric on one side.
		w.change(`
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: all, namespace: istio-system}
spec:
  metrics:
  - overrides:
    - tagOverrides: {response_flags: {operation: REMOVE}, path: {value: request.path}, kind: {value: "response.code > 400 ? 'bad' : 'good'"}}
    - match: {metric: REQUEST_COUNT, mode: CLIENT}
      disabled: true
`)
		w.expect(200, "", func() httpResult { return w.request(clientPort, "http://server.back/changed") })
		eventually(t, func() string {
			if len(server.series("envoy_istio_requests_total", "path=/changed", "kind=good", "response_code=200")) == 1 {
				return ""
			}
			_ = w.request(clientPort, "http://server.back/changed")
			return strings.Join(server.series("envoy_istio_requests_total"), "\n")
		})
		if found := server.series("envoy_istio_requests_total", "path=/changed", "response_flags=-"); len(found) > 0 {
			t.Errorf("the metric still has the removed label: %v", found)
		}
		if found := client.series("envoy_istio_requests_total", "path=/changed"); len(found) > 0 {
			t.Errorf("Envoy still reports the disabled metric: %v", found)
		}
		server.hasSettled()
	})
}

// talk sends text on a connection and expects it back.
func (w *testEnv) talk(address, text string) {
	w.t.Helper()
	eventually(w.t, func() string {
		c, err := net.DialTimeout("tcp", w.expandNetwork(address), 5*time.Second)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(c, text)
		back := make([]byte, len(text))
		if _, err := io.ReadFull(c, back); err != nil || string(back) != text {
			return fmt.Sprintf("%q %v", back, err)
		}
		return ""
	})
}

// requestAsPeer sends a request to a server's sidecar as a mesh client with a certificate and no sidecar.
func (w *testEnv) requestAsPeer(target, id, peer string) {
	w.t.Helper()
	cert, key := w.plane.ca.issue(id)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := tls.Dial("tcp", w.expandNetwork("NET.2.1:8080"), &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "http/1.1"}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: server.back\r\nX-Pilotfish-Peer: %s\r\nConnection: close\r\n\r\n", peer)
	answer, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(answer), `peer=""`) {
		w.t.Errorf("%q %v", answer, err)
	}
}

// TestPeerHeaderReachesOnlySidecars: applications and external hosts do not receive peer metadata.
func TestPeerHeaderReachesOnlySidecars(t *testing.T) {
	forEachEnvoyVersion(t, 197001, func(t *testing.T, version string, network int) {
		seen := make(chan string, 100)
		respond := func(name string) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				seen <- name + r.URL.Path
				fmt.Fprintf(rw, "%s peer=%q", name, r.Header.Get("X-Pilotfish-Peer"))
				if p := r.Header.Get("X-Pilotfish-Peer"); p != "" {
					t.Errorf("%s%s receives the peer header %q", name, r.URL.Path, p)
				}
			}
		}
		external := httptest.NewServer(respond("external"))
		t.Cleanup(external.Close)
		w := newTestEnv(t, version, network, pair, strings.ReplaceAll(`
apiVersion: v1
kind: Service
metadata: {name: bare, namespace: back}
spec: {selector: {app: bare}, ports: [{name: http, port: 80, targetPort: 8080}, {name: any, port: 81, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: bare, namespace: back}
spec: {address: NET.3.1, labels: {app: bare}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: back}
spec: {hosts: [out.example.com], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: NET.4.1, ports: {http: 8080}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: copied, namespace: back}
spec:
  hosts: [server]
  http:
  - match: [{uri: {prefix: /copied}}]
    route: [{destination: {host: server, port: {number: 80}}}]
    mirrors: [{destination: {host: out.example.com, port: {number: 80}}}, {destination: {host: bare, port: {number: 80}}}]
  - route: [{destination: {host: server, port: {number: 80}}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: exit, namespace: back}
spec:
  selector: {istio: exit}
  servers:
  - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*.example.com"]}
  - {port: {number: 8081, name: external, protocol: HTTP}, hosts: ["*"], defaultEndpoint: "EXTERNAL_ADDRESS"}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: exit, namespace: back}
spec:
  hosts: [out.example.com]
  gateways: [exit]
  http:
  - match: [{uri: {prefix: /parted}}]
    route: [{weight: 1, destination: {host: out.example.com, port: {number: 80}}}, {weight: 1, destination: {host: server, port: {number: 80}}}]
  - match: [{uri: {prefix: /copied}}]
    route: [{destination: {host: server, port: {number: 80}}}]
    mirrors: [{destination: {host: out.example.com, port: {number: 80}}}]
  - route: [{destination: {host: out.example.com, port: {number: 80}}}]
`, "EXTERNAL_ADDRESS", strings.TrimPrefix(external.URL, "http://")))
		w.serveApp("NET.2.2:8080", "server", respond("server"))
		w.serveApp("NET.3.1:8080", "bare", respond("bare"))
		w.serveApp("NET.4.1:8080", "out", respond("out"))
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		w.proxy("router exit.back NET.5.1 istio=exit", "back/exit")
		for _, url := range []string{"http://bare.back/", "http://bare.back:81/", "http://out.example.com/", serverURL, "http://server.back/copied"} {
			w.expect(200, `peer=""`, func() httpResult { return w.request(clientPort, url) })
		}
		for _, url := range []string{"http://NET.5.1:8080/", "http://NET.5.1:8080/copied", "http://NET.5.1:8081/"} {
			w.expect(200, `peer=""`, func() httpResult { return w.request("", url, "Host=out.example.com", "X-Pilotfish-Peer=a;b;c;d;e;f") })
		}
		for parted := map[string]bool{}; len(parted) < 2; {
			got := w.request("", "http://NET.5.1:8080/parted", "Host=out.example.com", "X-Pilotfish-Peer=a;b;c;d;e;f")
			if got.code != 200 || !strings.Contains(got.body, `peer=""`) {
				t.Fatalf("%+v", got)
			}
			parted[got.body] = true
		}
		for copies := 0; copies < 3; {
			select {
			case s := <-seen:
				if s == "out/copied" || s == "bare/copied" {
					copies++
				}
			case <-time.After(10 * time.Second):
				t.Fatal("no mirrored requests received")
			}
		}
	})
}

// TestOnDemandSidecarHasCollectorClusters although no route requests them.
func TestOnDemandSidecarHasCollectorClusters(t *testing.T) {
	mesh := &meshconfig.MeshConfig{}
	if err := protojson.Unmarshal([]byte(`{"extensionProviders": [{"name": "p", "opentelemetry": {"service": "collector.back.svc.cluster.local", "port": 4317}}],
		"defaultProviders": {"tracing": ["p"]}}`), mesh); err != nil {
		t.Fatal(err)
	}
	m := newTestMesh(t, mesh, strings.ReplaceAll(pair, "NET", "127.197"), `
apiVersion: v1
kind: Service
metadata: {name: collector, namespace: back}
spec: {selector: {app: collector}, ports: [{name: tcp, port: 4317}]}
`)
	needed, err := translate.RequiredClusters(m.snap, proxy(t, "sidecar client.front 127.197.1.1 app=client INTERCEPTION_MODE=REDIRECT ENVOY_VERSION=1.40.0 HOSTS_APART=yes"))
	if want := translate.OutboundCluster("collector.back.svc.cluster.local", "", 4317); err != nil || !slices.Contains(needed, want) {
		t.Errorf("%v %v: the cluster %s is missing", needed, err, want)
	}
}
