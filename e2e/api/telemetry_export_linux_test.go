package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// checkLogged fails if no line of the mesh's log matches.
func (w *testMesh) checkLogged(pattern string) error {
	log, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err == nil && !regexp.MustCompile(pattern).Match(log) {
		err = fmt.Errorf("no line of the log is like %s", pattern)
	}
	return err
}

// statusOf returns the state of an instance.
func (w *testMesh) statusOf(name string) mesh.InstanceStatus {
	for _, i := range w.Status(w.ctx).Instances {
		if i.Name == name {
			return i
		}
	}
	return mesh.InstanceStatus{}
}

// telemetryFor returns a Telemetry document for the workload of an app in namespace default.
func telemetryFor(app, fields string) string {
	return "\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: $HOST}\nspec: {selector: {matchLabels: {app: " + app + "}}, " + fields + "}\n"
}

// TestCollectorsReceiveTracesAndLogs verifies that traces and logs reach the addresses of their providers.
func TestCollectorsReceiveTracesAndLogs(t *testing.T) {
	traced := func(provider, place string) row {
		return row{name: "traces by " + provider, ports: []string{"http"}, exclusive: []string{"telemetry of client"},
			docs: telemetryFor("client", "tracing: [{providers: [{name: "+provider+"}], randomSamplingPercentage: 100, customTags: {row: {literal: {value: tag-of-$HOST}}}}]"),
			check: func(w *testMesh, host string) error {
				if _, err := w.expectStatus(http.StatusOK, "client", "http://"+host+"/"); err != nil {
					return err
				}
				return checkf(w.collected.has(place, "tag-of-"+host), "no such trace at %s", place)
			}}
	}
	runRows(t, []row{
		traced("otel", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
		traced("otel-http", "/v1/traces"),
		traced("zipkin", "/api/v2/spans"),
		{name: "calls that are not sampled go on as they came", ports: []string{"http"}, exclusive: []string{"telemetry of client"},
			docs: telemetryFor("client", "tracing: [{providers: [{name: otel}], randomSamplingPercentage: 0}]"), check: func(w *testMesh, host string) error {
				const id = "0af7651916cd43dd8448eb211c80319c"
				got, err := w.expectStatus(http.StatusOK, "client", "http://"+host+"/", "Traceparent", "00-"+id+"-b7ad6b7169203331-00")
				passed := got.Echo.Header.Get("Traceparent")
				if err != nil || !strings.HasPrefix(passed, "00-"+id+"-") || !strings.HasSuffix(passed, "-00") {
					return fmt.Errorf("the application gets %q: %w", passed, err)
				}
				got, err = w.expectStatus(http.StatusOK, "client", "http://"+host+"/")
				return checkf(err == nil && strings.HasSuffix(got.Echo.Header.Get("Traceparent"), "-00"), "%v %v", got.Echo.Header, err)
			}},
		{name: "access logs of each form", ports: []string{"http"}, exclusive: []string{"guarded"},
			docs: telemetryFor("guarded", "accessLogging: [{providers: [{name: text-logs}, {name: json-logs}, {name: otel-logs}], match: {mode: SERVER}}]"),
			check: func(w *testMesh, _ string) error {
				if _, err := w.expectStatus(http.StatusTeapot, "client", "http://guarded.default/logged-by-each", "X-Reply-Status", "418"); err != nil {
					return err
				}
				if err := w.checkLogged(`as-text /logged-by-each 418`); err != nil {
					return err
				}
				if err := w.checkLogged(`\{.*"path":"/logged-by-each".*\}`); err != nil {
					return err
				}
				return checkf(w.collected.has("/opentelemetry.proto.collector.logs.v1.LogsService/Export", "collected /logged-by-each"), "nothing was collected")
			}},
		{name: "metrics with other labels", ports: []string{"http"}, versions: []string{testenv.EnvoyVersion}, exclusive: []string{"guarded"},
			docs: telemetryFor("guarded", `metrics: [{providers: [{name: prometheus}], overrides: [
  {match: {metric: REQUEST_COUNT, mode: SERVER}, tagOverrides: {row: {value: "'$HOST'"}, response_flags: {operation: REMOVE}}},
  {match: {metric: TCP_CLOSED_CONNECTIONS, mode: SERVER}, tagOverrides: {row: {value: "'$HOST'"}}}]}]`),
			check: func(w *testMesh, host string) error {
				if err := w.checkAnswers(answer{from: "client", status: 200}); err != nil {
					return err
				}
				if err := w.checkTCP("client", portTCP, true); err != nil {
					return err
				}
				if err := w.checkMetric("guarded", "istio_requests_total", `reporter="destination"`, `row="`+host+`"`); err != nil {
					return err
				}
				return w.checkMetric("guarded", "istio_tcp_connections_closed_total", `reporter="destination"`, `row="`+host+`"`, "/sa/client")
			}},
		{name: "metrics that are switched off", ports: []string{"http"}, versions: []string{testenv.EnvoyVersion}, exclusive: []string{"guarded"},
			docs: telemetryFor("guarded", `metrics: [{providers: [{name: prometheus}], overrides: [
  {match: {metric: ALL_METRICS, mode: SERVER}, tagOverrides: {'off': {value: "'$HOST'"}}},
  {match: {metric: REQUEST_SIZE, mode: SERVER}, disabled: true}]}]`),
			check: func(w *testMesh, host string) error {
				if err := w.checkAnswers(answer{from: "client", status: 200}); err != nil {
					return err
				}
				for _, metric := range []string{"istio_requests_total", "istio_response_bytes_count"} {
					if err := w.checkMetric("guarded", metric, `reporter="destination"`, `off="`+host+`"`); err != nil {
						return err
					}
				}
				return checkf(w.checkMetric("guarded", "istio_request_bytes_count", `off="`+host+`"`) != nil, "a metric that is switched off is told")
			}},
		{name: "wasm plugin from a server", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: http://$OUTSIDE:$OUTSIDE_HTTP/answer.wasm
  phase: AUTHZ
  match: [{mode: SERVER, ports: [{number: 8080}]}]
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(http.StatusTeapot, "client", "http://guarded.default/")
			return checkf(err == nil && got.Body == "wasm", "%s %v", toJSON(got), err)
		}},
		{name: "wasm plugin without its module", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: http://$OUTSIDE:$OUTSIDE_HTTP/missing.wasm
  phase: AUTHZ
  match: [{mode: SERVER, ports: [{number: 8080}]}]
`, check: func(w *testMesh, _ string) error {
			if _, err := w.expectStatus(http.StatusForbidden, "client", "http://guarded.default/"); err != nil {
				return err
			}
			config := w.statusOf("guarded").Config
			return checkf(config.State == mesh.ConfigDegraded && strings.Contains(config.Reason, "cannot be fetched, so all requests are refused"), "state %s: %s", config.State, config.Reason)
		}},
		{name: "wasm plugin from a registry that asks for a password", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: oci://$OUTSIDE:$OUTSIDE_HTTP` + imagePath + `
  imagePullSecret: $HOST
  phase: AUTHZ
  match: [{mode: SERVER, ports: [{number: 8080}]}]
---
apiVersion: v1
kind: Secret
metadata: {name: $HOST}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"$OUTSIDE:$OUTSIDE_HTTP": {"username": "` + registryUser + `", "password": "` + registryPassword + `"}}}'}
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(http.StatusTeapot, "client", "http://guarded.default/")
			if err != nil || got.Body != "wasm" {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			return w.checkNotExposed(registryPassword)
		}},
	})
}

// checkNotExposed fails if the word appears in the configuration dump of the guarded workload's Envoy or in the log.
func (w *testMesh) checkNotExposed(word string) error {
	got, err := w.get("guarded", "http://127.0.0.1:15000/config_dump?include_eds")
	if err == nil && !strings.Contains(got.Body, "wasm") {
		err = fmt.Errorf("there are no plugins in %.200s", got.Body)
	}
	if err != nil || strings.Contains(got.Body, word) {
		return fmt.Errorf("Envoy has it: %w", err)
	}
	return checkf(w.checkLogged(regexp.QuoteMeta(word)) != nil, "it is in the log")
}

// TestMeshConfigurationIsFollowed verifies that changes of the mesh's configuration file are applied, and that removed
// settings are reverted.
func TestMeshConfigurationIsFollowed(t *testing.T) {
	runRows(t, []row{
		{name: "mesh says what is logged and where calls may go", ports: []string{"http"}, mesh: `
accessLogFile: /dev/stdout
accessLogFormat: "mesh-says %REQ(:PATH)%\n"
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(http.StatusOK, "client", "http://"+host+"/logged-by-mesh"); err != nil {
				return err
			}
			if got, err := w.get("client", "http://"+w.outsideAddress()+":"+w.outside[portHTTP]+"/"); err == nil && got.Server != "" {
				return fmt.Errorf("what is not in the registry answers: %s", toJSON(got))
			}
			return w.checkLogged(`mesh-says /logged-by-mesh`)
		}},
		{name: "mesh says how paths are compared", ports: []string{"http"}, exclusive: []string{"guarded"}, mesh: "\npathNormalization: {normalization: DECODE_AND_MERGE_SLASHES}\n",
			docs: policy(`action: DENY, rules: [{to: [{operation: {paths: [/admin], ports: ["8080"]}}]}]`), check: func(w *testMesh, _ string) error {
				return w.checkAnswers(answer{from: "client", path: "//admin", status: 403}, answer{from: "client", path: "/x%2F..%2Fadmin", status: 403}, answer{from: "client", path: "/", status: 200})
			}},
		{name: "mesh says what it said before", ports: []string{"http"}, docs: ``, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(http.StatusOK, "client", "http://"+w.outsideAddress()+":"+w.outside[portHTTP]+"/")
			return checkf(err == nil && got.Server == "outside", "%s %v", toJSON(got), err)
		}},
	})
}

// TestAddressesOfBothFamiliesAndDatagrams reach workloads.
func TestAddressesOfBothFamiliesAndDatagrams(t *testing.T) {
	runRows(t, []row{
		{name: "datagrams pass by", ports: []string{"http"}, check: func(w *testMesh, _ string) error {
			conn, err := w.Dial(w.ctx, "client", "udp", w.guardedAt(portUDP))
			if err != nil {
				return err
			}
			defer conn.Close()
			received, err := exchangeLines(conn, "hello", 1)
			return checkf(err == nil && received[0] == "guarded heard hello", "%q %v", received, err)
		}},
		{name: "datagrams to a service by its name", ports: []string{"udp"}, check: func(w *testMesh, host string) error {
			conn, err := w.Dial(w.ctx, "client", "udp", host+":5300")
			if err != nil {
				return err
			}
			defer conn.Close()
			received, err := exchangeLines(conn, "hello", 1)
			return checkf(err == nil && (received[0] == "v1 heard hello" || received[0] == "v2 heard hello"), "%q %v", received, err)
		}},
		{name: "service of both families", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-both}
spec:
  selector: {app: server}
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 240.8.8.1
  clusterIPs: [240.8.8.1, "fd00:8:8::1"]
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000}]
`, check: func(w *testMesh, host string) error {
			for _, address := range []string{"240.8.8.1", "[fd00:8:8::1]"} {
				got, err := w.send("client", request{URL: "http://" + address + "/", Host: host + "-both"})
				if err != nil || got.Server == "" || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
					return fmt.Errorf("%s: %s %w", address, toJSON(got), err)
				}
				if received, err := w.sendLine("client", address+":9000", "hello", 1); err != nil || !strings.HasSuffix(received[0], "heard hello") {
					return fmt.Errorf("%s: %q %w", address, received, err)
				}
			}
			return nil
		}},
		{name: "protocols by appprotocol", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-said}
spec:
  selector: {app: server}
  ports: [{name: a, port: 7005, targetPort: 7000, appProtocol: grpc}, {name: b, port: 3308, targetPort: 3306, appProtocol: mysql}, {name: c, port: 85, targetPort: 8080, appProtocol: http}, {name: d, port: 86, targetPort: 8082, appProtocol: kubernetes.io/h2c}]
`, check: func(w *testMesh, host string) error {
			host += "-said"
			if server, err := w.checkGRPC("client", host+":7005"); err != nil || server == "" {
				return fmt.Errorf("%q answered, %w", server, err)
			}
			if received, err := w.sendLine("client", host+":3308", "hello", 2); err != nil || !strings.HasSuffix(received[0], "greets") {
				return fmt.Errorf("%q %w", received, err)
			}
			for port, protocol := range map[string]string{"85": "HTTP/1.1", "86": "HTTP/2.0"} {
				got, err := w.expectStatus(http.StatusOK, "client", "http://"+host+":"+port+"/")
				if err != nil || got.Proto != protocol {
					return fmt.Errorf("port %s: %s %w", port, toJSON(got), err)
				}
			}
			return nil
		}},
	})
}
