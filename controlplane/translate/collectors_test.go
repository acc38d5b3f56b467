package translate_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/emptypb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// rawCodec passes messages unchanged and sends empty responses.
type rawCodec struct{}

func (rawCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (rawCodec) Name() string                { return "raw" }
func (rawCodec) Unmarshal(data []byte, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = bytes.Clone(data)
	}
	return nil
}

// collector stores the messages that it receives by gRPC and HTTP.
type collector struct{ got syncBuffer }

func (c *collector) serve(w *testEnv, grpcAddress, httpAddress string) {
	g := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		for {
			var message []byte
			if err := stream.RecvMsg(&message); err != nil {
				return stream.SendMsg(&emptypb.Empty{})
			}
			fmt.Fprintf(&c.got, "%s %s\n", method, message)
			if strings.Contains(method, "Export") {
				return stream.SendMsg(&emptypb.Empty{})
			}
		}
	}))
	go func(l net.Listener) { _ = g.Serve(l) }(w.listen(grpcAddress))
	w.t.Cleanup(g.Stop)
	w.serveApp(httpAddress, "collector", func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(&c.got, "%s %s\n", r.URL.Path, body)
		rw.WriteHeader(http.StatusAccepted)
	})
}

const collectors = `{"extensionProviders": [
 {"name": "otel", "opentelemetry": {"service": "collector.example", "port": 4317}},
 {"name": "otel-http", "opentelemetry": {"service": "collector.example", "port": 4318, "http": {"path": "/v1/traces"}}},
 {"name": "zipkin", "zipkin": {"service": "collector.example", "port": 4318}},
 {"name": "otel-logs", "envoyOtelAls": {"service": "collector.example", "port": 4317, "logFormat": {"text": "line %REQ(:PATH)%", "labels": {"code": "%RESPONSE_CODE%"}}}},
 {"name": "als", "envoyHttpAls": {"service": "collector.example", "port": 4317}}]}`

// TestTracesAndLogsReachTheirCollectors by each protocol, with the tags that Telemetry documents specify.
func TestTracesAndLogsReachTheirCollectors(t *testing.T) {
	forEachEnvoyVersion(t, 176004, func(t *testing.T, version string, network int) {
		w := &testEnv{version: version, network: network, plane: newTestControlPlane(t)}
		mesh := &meshconfig.MeshConfig{}
		if err := protojson.Unmarshal([]byte(collectors), mesh); err != nil {
			t.Fatal(err)
		}
		w.testMesh = newTestMesh(t, mesh, w.expandNetwork(pair), w.expandNetwork(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: front}
spec:
  hosts: [collector.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 4318, name: http, protocol: HTTP}]
  endpoints: [{address: NET.9.1}]
`))
		w.plane.push(pushState{snap: w.snap}, snapshot.Change{Full: true})
		c := &collector{}
		c.serve(w, "NET.9.1:4317", "NET.9.1:4318")
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		for i, step := range []struct{ fields, path, also string }{
			{"tracing: [{providers: [{name: otel}], randomSamplingPercentage: 100, customTags: {mine: {literal: {value: my-value}}}}]", "TraceService/Export", "my-value"},
			{"tracing: [{providers: [{name: otel-http}], randomSamplingPercentage: 100, customTags: {mine: {header: {name: x-mine}}}}]", "/v1/traces", "from-header"},
			{"tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 100}]", "/api/v2/spans", `"istio.canonical_service":"client"`},
			{"accessLogging: [{providers: [{name: otel-logs}]}]", "LogsService/Export", "line /step3"},
			{"accessLogging: [{providers: [{name: als}], filter: {expression: \"request.method == 'GET'\"}}]", "AccessLogService/StreamAccessLogs", "/step4"},
		} {
			w.change("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: client, namespace: front}\nspec: {" + step.fields + "}")
			url := fmt.Sprintf("http://server.back/step%d", i)
			eventually(t, func() string {
				if a := w.request(clientPort, url, "X-Mine=from-header"); a.code != 200 {
					return a.String()
				}
				for line := range strings.SplitSeq(c.got.String(), "\n") {
					if strings.Contains(line, step.path) && strings.Contains(c.got.String(), step.also) && strings.Contains(c.got.String(), fmt.Sprintf("/step%d", i)) {
						return ""
					}
				}
				return fmt.Sprintf("the collector received no message with %q and %q: %.600q", step.path, step.also, c.got.String())
			})
		}
	})
}
