package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// topologyText describes each mesh. client and other make requests. v1 and v2 are the versions of app "server"; every row
// has its own Service for them. guarded has a service of its name, for rows that change its sidecar's inbound policies.
// other also registers itself with a WorkloadGroup, and serves while its readiness probe succeeds.
const topologyText = `
apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: NAME}
spec:
  config: istio
  mesh: MESH
  workloads:
  - {name: gateway, type: gateway, namespace: istio-system, labels: {istio: ingressgateway}, serviceAccount: gateway, annotations: {proxy.istio.io/config: "{gatewayTopology: {numTrustedProxies: 1}}"}}
  - {name: client, labels: {istio-locality: near.a}, serviceAccount: client, annotations: {proxy.istio.io/config: "{proxyMetadata: {ISTIO_META_ENABLE_SELF_DISCOVERY: 'true'}}"}, command: ["${PILOTFISH}", idle]}
  - {name: other, namespace: other, serviceAccount: other, annotations: {traffic.sidecar.istio.io/excludeOutboundPorts: "3399", proxy.istio.io/config: "GUEST"}, PORTS}
  - {name: v1, labels: {app: server, version: v1}, serviceAccount: server, PORTS}
  - {name: v2, labels: {app: server, version: v2}, serviceAccount: server, PORTS}
  - {name: guarded, serviceAccount: guarded, PORTS}
`

const serverPorts = `command: ["${PILOTFISH}", serve], env: {SOCKET: "${TOPOLOGY_DIR}/${NAME}.sock", TLS_CERT: "${TOPOLOGY_DIR}/server.crt", TLS_KEY: "${TOPOLOGY_DIR}/server.key"}, ports: [` +
	`{name: http, port: 8080, protocol: HTTP}, {name: undeclared, port: 8081}, {name: http2, port: 8082, protocol: HTTP2}, {name: grpc, port: 7000, protocol: GRPC}, {name: tcp, port: 9000}, {name: untold, port: 9001}, ` +
	`{name: https, port: 8443, protocol: HTTPS}, {name: mysql, port: 3306}, {name: unsaid, port: 3307}, {name: udp, port: 5300, protocol: UDP}]`

// guest is the proxy configuration of the workload that registers itself.
const guest = `{proxyMetadata: {ISTIO_META_AUTO_REGISTER_GROUP: guests}, readinessProbe: {periodSeconds: 1, httpGet: {path: /health, port: 8080}}}`

// shared are documents for all rows: the registration of workloads, and the collectors of traces and logs.
const shared = `
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: guests, namespace: other}
spec: {metadata: {labels: {app: other, guest: "yes"}}, template: {serviceAccount: other}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: other, namespace: other}
spec: {selector: {matchLabels: {app: other}}, concurrency: 1, environmentVariables: {ISTIO_META_SAID_BY: proxyconfig}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: other, namespace: other}
spec: {configPatches: [{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {static_resources: {clusters: [{name: from-a-patch, type: STATIC, connect_timeout: 1s}]}}}}]}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: modules, namespace: istio-system}
spec: {environmentVariables: {WASM_INSECURE_REGISTRIES: "*"}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector}
spec:
  hosts: [collector.example]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 4317, name: grpc, protocol: GRPC, targetPort: $OUTSIDE_GRPC}, {number: 4318, name: http, protocol: HTTP, targetPort: $OUTSIDE_HTTP}]
  endpoints: [{address: host.pilotfish.internal}]
`

// adminAddress is the address at which rows request the admin interface of a workload's Envoy.
const adminAddress = "127.0.0.1:15000"

// meshFile contains the mesh's configuration, which rows may extend. meshConfig is its content for all other rows.
const (
	meshFile   = "meshconfig.yaml"
	meshConfig = `
trustDomainAliases: [former.example]
defaultConfig: {proxyStatsMatcher: {inclusionPrefixes: [cluster.outbound]}}
extensionProviders:
- {name: otel, opentelemetry: {service: collector.example, port: 4317}}
- {name: otel-http, opentelemetry: {service: collector.example, port: 4318, http: {path: /v1/traces}}}
- {name: zipkin, zipkin: {service: collector.example, port: 4318}}
- {name: otel-logs, envoyOtelAls: {service: collector.example, port: 4317, logFormat: {text: "collected %REQ(:PATH)%"}}}
- {name: text-logs, envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "as-text %REQ(:PATH)% %RESPONSE_CODE%\n"}}}
- {name: json-logs, envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {path: "%REQ(:PATH)%", code: "%RESPONSE_CODE%"}}}}
- {name: asked, envoyExtAuthzHttp: {service: server.default.svc.cluster.local, port: 80, includeRequestHeadersInCheck: [x-reply-status]}}
- {name: asked-grpc, envoyExtAuthzGrpc: {service: server.default.svc.cluster.local, port: 7000, timeout: 5s}}
- {name: down, envoyExtAuthzHttp: {service: down.example, port: 80, timeout: 2s}}
- {name: away, envoyExtAuthzHttp: {service: away.example, port: 80}}
`
)

// servicePorts are the ports of the services of applications, by their names.
var servicePorts = map[string]string{
	"http":  "port: 80, targetPort: 8080",
	"http2": "port: 82, targetPort: 8082",
	"grpc":  "port: 7000",
	"tcp":   "port: 9000",
	"tls":   "port: 443, targetPort: 8443",
	"mysql": "port: 3306",
	"udp":   "port: 5300, protocol: UDP",
}

// serviceOf is a service of an application with these ports, or with all of them: the same ones whatever its name.
func serviceOf(name, app string, ports ...string) string {
	if len(ports) == 0 {
		ports = slices.Sorted(maps.Keys(servicePorts))
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  selector: {app: %s}\n  ports:\n", name, app)
	for _, p := range ports {
		text += fmt.Sprintf("  - {name: %s, %s}\n", p, servicePorts[p])
	}
	return text
}

// noEgress removes the rows' services from the servers' sidecars, which make no requests. Each row adds many clusters,
// and processing them in all sidecars would need more time than the requests.
const noEgress = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: servers}
spec: {workloadSelector: {labels: {app: server}}, egress: [{hosts: ["~/*"]}]}
`

// testMesh is a running mesh, in which rows make their requests.
type testMesh struct {
	*mesh.Mesh
	// envoy is the version of its Envoys.
	envoy string
	// dir holds the topology; what is written into dir/istio is in force soon after.
	dir string
	// ca issues the certificates of servers and clients outside the mesh, and of the servers' own TLS ports. Its
	// certificate is in dir/ca.crt.
	ca *testpki.Authority
	// certificate and key are of the servers' own TLS ports, in PEM. trustedClient is a client certificate of ca.
	certificate, key []byte
	trustedClient    tls.Certificate
	// untrustedClient has a certificate of an issuer that no server trusts.
	untrustedClient tls.Certificate
	// outside are the ports of a server outside the mesh, by the port with the same protocol at a server. collected
	// contains the traces and logs that were sent to it.
	outside   map[int]string
	collected *collector

	ctx   context.Context
	stop  context.CancelFunc
	onEnd []func() error
	ended chan error

	mu       sync.Mutex
	rowLocks map[string]*sync.Mutex
	// configMu is locked by rows that change the configuration of the whole mesh, and read-locked by all others.
	configMu sync.RWMutex
	// later are the documents of rows that their checks apply later, by the row's host. since is when each check began.
	later map[string]string
	since map[string]time.Time
}

var (
	meshesMu sync.Mutex
	meshes   = map[string]*testMesh{}
)

// meshFor returns the mesh of an Envoy version. It starts the mesh for the first row that needs it.
func meshFor(t *testing.T, envoy string) *testMesh {
	t.Helper()
	meshesMu.Lock()
	defer meshesMu.Unlock()
	w, ok := meshes[envoy]
	if !ok {
		w = startMesh(t, envoy)
		meshes[envoy] = w
	}
	w.waitReady(t)
	return w
}

func startMesh(t *testing.T, envoy string) *testMesh {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pfapi") // short enough for sockets, and there until all rows are done
	if err != nil {
		t.Fatal(err)
	}
	w := &testMesh{envoy: envoy, dir: dir, ca: testpki.New(t, "outside"), outside: map[int]string{}, collected: &collector{}, rowLocks: map[string]*sync.Mutex{},
		later: map[string]string{}, since: map[string]time.Time{}, ended: make(chan error, 1)}
	running := false
	defer func() {
		if running {
			return
		}
		if err := errors.Join(w.clean()...); err != nil {
			t.Error(err)
		}
	}()
	text := strings.NewReplacer("NAME", "api-"+strings.ReplaceAll(envoy, ".", "-"), "PORTS", serverPorts, "MESH", meshFile, "GUEST", guest).Replace(topologyText)
	certificate, key := w.ca.Server(t, "server.example", "*.tls.example", "outside.example")
	w.certificate, w.key = certificate, key
	someone, someonesKey := w.ca.Workload(t, "spiffe://outside/someone")
	if w.trustedClient, err = tls.X509KeyPair(someone, someonesKey); err != nil {
		t.Fatal(err)
	}
	if w.untrustedClient, err = tls.X509KeyPair(testpki.New(t, "elsewhere").Workload(t, "spiffe://outside/someone")); err != nil {
		t.Fatal(err)
	}
	w.openOutside(t)
	for name, content := range map[string]string{
		"mesh.yaml": text, "ca.crt": string(w.ca.PEM()), "server.crt": string(certificate), "server.key": string(key), "someone.crt": string(someone), "someone.key": string(someonesKey),
		meshFile: meshConfig, "istio/shared.yaml": w.outsidePorts().Replace(shared),
		"istio/guarded.yaml": serviceOf("guarded", "guarded"), "istio/server.yaml": serviceOf("server", "server") + "---" + noEgress,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	top, err := topology.Load(filepath.Join(dir, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.Mesh, err = mesh.New(mesh.Config{
		Topology: top, Environ: os.Environ(), RuntimeDir: filepath.Join(dir, "run"), Network: mesh.Captured{},
		EnvoyPath: testenv.EnvoyOf(t, envoy), AgentCommand: []string{testenv.Bin(t, "pilotfish-agent")},
		GuardCommand: []string{os.Args[0], "guard"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	go w.writeLog(filepath.Join(dir, "log"))
	go func() { w.ended <- w.Run(w.ctx) }()
	running = true
	return w
}

// writeLog writes the mesh's events to a file, to analyze a failure while the mesh runs.
func (w *testMesh) writeLog(path string) {
	out, err := os.Create(path)
	if err != nil {
		return
	}
	defer out.Close()
	sub := w.Events()
	for {
		events, ok := sub.Next(nil)
		if !ok {
			return
		}
		for _, e := range events {
			fmt.Fprintln(out, e.Time.Format("15:04:05.000"), e.Instance, e.Origin, e.Kind, e.Message, e.Line)
		}
	}
}

func (w *testMesh) waitReady(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "the mesh of Envoy "+w.envoy, func() error {
		select {
		case err := <-w.ended:
			w.ended <- err
			t.Fatalf("the mesh ended: %v", err)
		default:
		}
		if s := w.Status(context.Background()); !s.Ready {
			for _, i := range s.Instances {
				if !i.Ready {
					return fmt.Errorf("%s is not ready: %v", i.Name, i.Reasons)
				}
			}
			return errors.New("nothing has started")
		}
		return nil
	})
}

// closeMeshes ends all meshes.
func closeMeshes() error {
	meshesMu.Lock()
	defer meshesMu.Unlock()
	var errs []error
	for _, w := range meshes {
		w.stop()
	}
	for _, w := range meshes {
		errs = append(append(errs, <-w.ended), w.clean()...)
	}
	return errors.Join(errs...)
}

// clean removes what a mesh leaves behind apart from running processes.
func (w *testMesh) clean() []error {
	var errs []error
	for _, f := range w.onEnd {
		errs = append(errs, f())
	}
	return append(errs, os.RemoveAll(w.dir))
}

// lock blocks other rows that lock the same name, until unlock is called.
func (w *testMesh) lock(name string) (unlock func()) {
	w.mu.Lock()
	m, ok := w.rowLocks[name]
	if !ok {
		m = &sync.Mutex{}
		w.rowLocks[name] = m
	}
	w.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// instance is an instance of the topology by its name.
func (w *testMesh) instance(name string) *topology.Instance {
	for _, i := range w.Instances() {
		if i.Name == name {
			return i
		}
	}
	return nil
}

// client makes requests from the network of an instance, as its application does. With "", it is a client in the mesh's
// network without a sidecar.
func (w *testMesh) client(from string, protocols ...string) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(len(protocols) == 0)
	p.SetUnencryptedHTTP2(len(protocols) > 0)
	return &http.Client{
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true, Protocols: p,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if address == adminAddress {
					return w.DialAdmin(ctx, from)
				}
				return w.Dial(ctx, from, network, address)
			},
		},
	}
}
