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
)

// logged says when no line of what the mesh wrote matches.
func (w *world) logged(pattern string) error {
	log, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err == nil && !regexp.MustCompile(pattern).Match(log) {
		err = fmt.Errorf("no line of the log is like %s", pattern)
	}
	return err
}

// tells is a Telemetry document for the workload of an app, in default.
func tells(app, fields string) string {
	return "\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: $HOST}\nspec: {selector: {matchLabels: {app: " + app + "}}, " + fields + "}\n"
}

// TestCollectorsAreTold: traces and logs arrive where providers say.
func TestCollectorsAreTold(t *testing.T) {
	traced := func(provider, place string) row {
		return row{name: "traces by " + provider, ports: []string{"http"}, alone: []string{"telemetry of client"},
			docs: tells("client", "tracing: [{providers: [{name: "+provider+"}], randomSamplingPercentage: 100, customTags: {row: {literal: {value: tag-of-$HOST}}}}]"),
			check: func(w *world, host string) error {
				if _, err := w.expect(http.StatusOK, "client", "http://"+host+"/"); err != nil {
					return err
				}
				return is(w.collected.has(place, "tag-of-"+host), "no such trace at %s", place)
			}}
	}
	runRows(t, []row{
		traced("otel", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
		traced("otel-http", "/v1/traces"),
		traced("zipkin", "/api/v2/spans"),
		{name: "calls that are not sampled go on as they came", ports: []string{"http"}, alone: []string{"telemetry of client"},
			docs: tells("client", "tracing: [{providers: [{name: otel}], randomSamplingPercentage: 0}]"), check: func(w *world, host string) error {
				const id = "0af7651916cd43dd8448eb211c80319c"
				got, err := w.expect(http.StatusOK, "client", "http://"+host+"/", "Traceparent", "00-"+id+"-b7ad6b7169203331-00")
				passed := got.Echo.Header.Get("Traceparent")
				if err != nil || !strings.HasPrefix(passed, "00-"+id+"-") || !strings.HasSuffix(passed, "-00") {
					return fmt.Errorf("the application gets %q: %w", passed, err)
				}
				got, err = w.expect(http.StatusOK, "client", "http://"+host+"/")
				return is(err == nil && strings.HasSuffix(got.Echo.Header.Get("Traceparent"), "-00"), "%v %v", got.Echo.Header, err)
			}},
		{name: "access logs of each form", ports: []string{"http"}, alone: []string{"guarded"},
			docs: tells("guarded", "accessLogging: [{providers: [{name: text-logs}, {name: json-logs}, {name: otel-logs}], match: {mode: SERVER}}]"),
			check: func(w *world, _ string) error {
				if _, err := w.expect(http.StatusTeapot, "client", "http://guarded.default/logged-by-each", "X-Reply-Status", "418"); err != nil {
					return err
				}
				if err := w.logged(`as-text /logged-by-each 418`); err != nil {
					return err
				}
				if err := w.logged(`\{.*"path":"/logged-by-each".*\}`); err != nil {
					return err
				}
				return is(w.collected.has("/opentelemetry.proto.collector.logs.v1.LogsService/Export", "collected /logged-by-each"), "nothing was collected")
			}},
		{name: "metrics with other labels", ports: []string{"http"}, only: []string{testenv.EnvoyVersion}, alone: []string{"guarded"},
			docs: tells("guarded", `metrics: [{providers: [{name: prometheus}], overrides: [
  {match: {metric: REQUEST_COUNT, mode: SERVER}, tagOverrides: {row: {value: "'$HOST'"}, response_flags: {operation: REMOVE}}},
  {match: {metric: TCP_CLOSED_CONNECTIONS, mode: SERVER}, tagOverrides: {row: {value: "'$HOST'"}}}]}]`),
			check: func(w *world, host string) error {
				if err := w.answers(answer{from: "client", status: 200}); err != nil {
					return err
				}
				if err := w.hears("client", portTCP, true); err != nil {
					return err
				}
				if err := w.scraped("guarded", "istio_requests_total", `reporter="destination"`, `row="`+host+`"`); err != nil {
					return err
				}
				return w.scraped("guarded", "istio_tcp_connections_closed_total", `reporter="destination"`, `row="`+host+`"`, "/sa/client")
			}},
		{name: "metrics that are switched off", ports: []string{"http"}, only: []string{testenv.EnvoyVersion}, alone: []string{"guarded"},
			docs: tells("guarded", `metrics: [{providers: [{name: prometheus}], overrides: [
  {match: {metric: ALL_METRICS, mode: SERVER}, tagOverrides: {'off': {value: "'$HOST'"}}},
  {match: {metric: REQUEST_SIZE, mode: SERVER}, disabled: true}]}]`),
			check: func(w *world, host string) error {
				if err := w.answers(answer{from: "client", status: 200}); err != nil {
					return err
				}
				for _, metric := range []string{"istio_requests_total", "istio_response_bytes_count"} {
					if err := w.scraped("guarded", metric, `reporter="destination"`, `off="`+host+`"`); err != nil {
						return err
					}
				}
				return is(w.scraped("guarded", "istio_request_bytes_count", `off="`+host+`"`) != nil, "a metric that is switched off is told")
			}},
		{name: "wasm plugin from a server", ports: []string{"http"}, alone: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: http://$OUTSIDE:$OUTSIDE_HTTP/answer.wasm
  phase: AUTHZ
  match: [{mode: SERVER, ports: [{number: 8080}]}]
`, check: func(w *world, _ string) error {
			got, err := w.expect(http.StatusTeapot, "client", "http://guarded.default/")
			return is(err == nil && got.Body == "wasm", "%s %v", toJSON(got), err)
		}},
		{name: "wasm plugin from a registry that asks for a password", ports: []string{"http"}, alone: []string{"guarded"}, docs: `
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
`, check: func(w *world, _ string) error {
			got, err := w.expect(http.StatusTeapot, "client", "http://guarded.default/")
			if err != nil || got.Body != "wasm" {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			return w.keepsToItself(registryPassword)
		}},
	})
}

// keepsToItself says where a word is to be seen: in what the guarded workload's Envoy has, or in what is said of it.
func (w *world) keepsToItself(word string) error {
	got, err := w.get("guarded", "http://127.0.0.1:15000/config_dump?include_eds")
	if err == nil && !strings.Contains(got.Body, "wasm") {
		err = fmt.Errorf("there are no plugins in %.200s", got.Body)
	}
	if err != nil || strings.Contains(got.Body, word) {
		return fmt.Errorf("Envoy has it: %w", err)
	}
	return is(w.logged(regexp.QuoteMeta(word)) != nil, "it is in the log")
}

// TestMeshConfigurationIsFollowed: what its file says is in force soon after, and what it said no longer.
func TestMeshConfigurationIsFollowed(t *testing.T) {
	runRows(t, []row{
		{name: "mesh says what is logged and where calls may go", ports: []string{"http"}, mesh: `
accessLogFile: /dev/stdout
accessLogFormat: "mesh-says %REQ(:PATH)%\n"
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
`, check: func(w *world, host string) error {
			if _, err := w.expect(http.StatusOK, "client", "http://"+host+"/logged-by-mesh"); err != nil {
				return err
			}
			if got, err := w.get("client", "http://"+w.outsideAddress()+":"+w.outside[portHTTP]+"/"); err == nil && got.Server != "" {
				return fmt.Errorf("what is not in the registry answers: %s", toJSON(got))
			}
			return w.logged(`mesh-says /logged-by-mesh`)
		}},
		{name: "mesh says how paths are compared", ports: []string{"http"}, alone: []string{"guarded"}, mesh: "\npathNormalization: {normalization: DECODE_AND_MERGE_SLASHES}\n",
			docs: policy(`action: DENY, rules: [{to: [{operation: {paths: [/admin], ports: ["8080"]}}]}]`), check: func(w *world, _ string) error {
				return w.answers(answer{from: "client", path: "//admin", status: 403}, answer{from: "client", path: "/x%2F..%2Fadmin", status: 403}, answer{from: "client", path: "/", status: 200})
			}},
		{name: "mesh says what it said before", ports: []string{"http"}, docs: ``, check: func(w *world, _ string) error {
			got, err := w.expect(http.StatusOK, "client", "http://"+w.outsideAddress()+":"+w.outside[portHTTP]+"/")
			return is(err == nil && got.Server == "outside", "%s %v", toJSON(got), err)
		}},
	})
}

// TestAddressesOfBothFamiliesAndDatagrams reach workloads.
func TestAddressesOfBothFamiliesAndDatagrams(t *testing.T) {
	runRows(t, []row{
		{name: "datagrams pass by", ports: []string{"http"}, check: func(w *world, _ string) error {
			conn, err := w.Dial(w.ctx, "client", "udp", w.guardedAt(portUDP))
			if err != nil {
				return err
			}
			defer conn.Close()
			heard, err := talk(conn, "hello", 1)
			return is(err == nil && heard[0] == "guarded heard hello", "%q %v", heard, err)
		}},
		{name: "datagrams to a service by its name", ports: []string{"udp"}, check: func(w *world, host string) error {
			conn, err := w.Dial(w.ctx, "client", "udp", host+":5300")
			if err != nil {
				return err
			}
			defer conn.Close()
			heard, err := talk(conn, "hello", 1)
			return is(err == nil && (heard[0] == "v1 heard hello" || heard[0] == "v2 heard hello"), "%q %v", heard, err)
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
`, check: func(w *world, host string) error {
			for _, address := range []string{"240.8.8.1", "[fd00:8:8::1]"} {
				got, err := w.ask("client", request{URL: "http://" + address + "/", Host: host + "-both"})
				if err != nil || got.Server == "" || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
					return fmt.Errorf("%s: %s %w", address, toJSON(got), err)
				}
				if heard, err := w.say("client", address+":9000", "hello", 1); err != nil || !strings.HasSuffix(heard[0], "heard hello") {
					return fmt.Errorf("%s: %q %w", address, heard, err)
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
`, check: func(w *world, host string) error {
			host += "-said"
			if server, err := w.checkGRPC("client", host+":7005"); err != nil || server == "" {
				return fmt.Errorf("%q answered, %w", server, err)
			}
			if heard, err := w.say("client", host+":3308", "hello", 2); err != nil || !strings.HasSuffix(heard[0], "greets") {
				return fmt.Errorf("%q %w", heard, err)
			}
			for port, protocol := range map[string]string{"85": "HTTP/1.1", "86": "HTTP/2.0"} {
				got, err := w.expect(http.StatusOK, "client", "http://"+host+":"+port+"/")
				if err != nil || got.Proto != protocol {
					return fmt.Errorf("port %s: %s %w", port, toJSON(got), err)
				}
			}
			return nil
		}},
	})
}
