package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	mcpv1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const (
	routeType  = "networking.istio.io/v1/VirtualService"
	policyType = "security.istio.io/v1/AuthorizationPolicy"
)

// documentTypes are the types that Istio's control plane requests, except those that have no effect here.
var documentTypes = []string{
	"networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1/WorkloadEntry", routeType, "networking.istio.io/v1/DestinationRule",
	"networking.istio.io/v1/Gateway", "networking.istio.io/v1/Sidecar", "security.istio.io/v1/PeerAuthentication", policyType,
	"security.istio.io/v1/RequestAuthentication", "networking.istio.io/v1alpha3/EnvoyFilter", "networking.istio.io/v1/WorkloadGroup",
	"networking.istio.io/v1beta1/ProxyConfig", "telemetry.istio.io/v1/Telemetry", "extensions.istio.io/v1alpha1/WasmPlugin",
}

// documentServer is go-control-plane's server with a linear cache for each type of documents.
type documentServer struct {
	t       testing.TB
	address string
	caches  map[string]*cache.LinearCache
	options []grpc.ServerOption
	stop    func()
}

func newDocumentServer(t testing.TB, address string, options ...grpc.ServerOption) *documentServer {
	s := &documentServer{t: t, address: address, caches: map[string]*cache.LinearCache{}, options: options}
	for _, typeURL := range documentTypes {
		s.caches[typeURL] = cache.NewLinearCache(typeURL)
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *documentServer) start() {
	s.t.Helper()
	var listener net.Listener
	testenv.Eventually(s.t, "the address is free", func() (err error) {
		listener, err = net.Listen("tcp", s.address)
		return err
	})
	mux := &cache.MuxCache{
		Classify: func(r *cache.Request) string { return r.GetTypeUrl() }, ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{},
	}
	for typeURL, c := range s.caches {
		mux.Caches[typeURL] = c
	}
	ctx, cancel := context.WithCancel(context.Background())
	plane := grpc.NewServer(s.options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(plane, server.NewServer(ctx, mux, nil))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = plane.Serve(listener)
	}()
	s.stop = func() {
		cancel()
		plane.Stop()
		<-done
	}
}

// set replaces the document of a type, or removes it if spec is nil.
func (s *documentServer) set(typeURL, name string, spec proto.Message) {
	s.t.Helper()
	var err error
	if spec == nil {
		err = s.caches[typeURL].DeleteResource(name)
	} else {
		err = s.caches[typeURL].UpdateResource(name, types.Resource(&mcpv1.Resource{Metadata: &mcpv1.Metadata{Name: name}, Body: packAny(s.t, spec)}))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func routeOf(host string, weight int32) *networking.VirtualService {
	return &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}, Weight: weight}}}}}
}

// documentReader is a control plane process whose only source is a server.
type documentReader struct {
	t          testing.TB
	monitoring string
	output     *testenv.Buffer
}

func startDocumentReader(t testing.TB, network, source, tlsSettings string) *documentReader {
	t.Helper()
	dir := t.TempDir()
	mesh := filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(mesh, fmt.Appendf(nil, "configSources: [{address: %q, tlsSettings: {%s}}]\n", "xds://"+source, tlsSettings), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &documentReader{t: t, monitoring: network + ".1:15014", output: &testenv.Buffer{}}
	plane := exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--mesh-config", mesh, "--state-dir", filepath.Join(dir, "state"), "--address", network+".1")
	plane.Stdout, plane.Stderr = r.output, r.output
	start(t, plane)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane said:\n%s", r.output)
		}
	})
	return r
}

// get decodes a page of the monitoring port.
func (r *documentReader) get(path string, into any) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + r.monitoring + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// await waits for the documents, each as "kind namespace/name state", and for problems that contain these texts.
func (r *documentReader) await(what string, documents []string, problems ...string) {
	r.t.Helper()
	testenv.Eventually(r.t, what, func() error {
		var list []struct {
			Resource struct{ Kind, Namespace, Name string }
			State    string
		}
		var found []map[string]any
		if err := r.get("/debug/configz", &list); err != nil {
			return err
		}
		if err := r.get("/debug/problems", &found); err != nil {
			return err
		}
		var got []string
		for _, d := range list {
			got = append(got, fmt.Sprintf("%s %s/%s %s", d.Resource.Kind, d.Resource.Namespace, d.Resource.Name, d.State))
		}
		if slices.Sort(got); !slices.Equal(got, documents) {
			return fmt.Errorf("the documents are %q", got)
		}
		for _, want := range problems {
			if !strings.Contains(fmt.Sprint(found), want) {
				return fmt.Errorf("the problems are %v, without %q", found, want)
			}
		}
		if len(problems) == 0 && len(found) > 0 && strings.Contains(fmt.Sprint(found), "PF00") {
			return fmt.Errorf("the problems are %v", found)
		}
		return nil
	})
}

func TestDocumentsOfGoControlPlane(t *testing.T) {
	pki := testpki.New(t, "root")
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, pki.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name, tls string
		creds     credentials.TransportCredentials
	}{
		{"plaintext", "mode: DISABLE", insecure.NewCredentials()},
		{"TLS", "mode: SIMPLE, sni: source.example, caCertificates: " + root, credentials.NewTLS(pki.ServerConfig(t, "source.example"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			network := fmt.Sprintf("127.68.%d", 230+i)
			source := newDocumentServer(t, network+".2:18000", grpc.Creds(c.creds))
			source.set(routeType, "shop/a", routeOf("a.example", 1))
			source.set(policyType, "shop/deny", &security.AuthorizationPolicy{})
			reader := startDocumentReader(t, network, source.address, c.tls)
			reader.await("the first documents", []string{"AuthorizationPolicy shop/deny in force", "VirtualService shop/a in force"})

			source.set(routeType, "shop/b", routeOf("b.example", 1))
			reader.await("a new document", []string{"AuthorizationPolicy shop/deny in force", "VirtualService shop/a in force", "VirtualService shop/b in force"})

			source.set(routeType, "shop/b", routeOf("b.example", -1))
			reader.await("an invalid document", []string{"AuthorizationPolicy shop/deny in force", "VirtualService shop/a in force", "VirtualService shop/b stale"},
				"spec.http[0].route[0].weight")
			source.set(policyType, "shop/deny", nil)
			reader.await("a removed document of another kind", []string{"VirtualService shop/a in force", "VirtualService shop/b stale"}, "spec.http[0].route[0].weight")
			source.set(routeType, "shop/b", routeOf("b.example", 2))
			reader.await("the corrected document", []string{"VirtualService shop/a in force", "VirtualService shop/b in force"})

			source.stop()
			reader.await("the server is away", []string{"VirtualService shop/a in force", "VirtualService shop/b in force"}, "PF0013")
			source.set(routeType, "shop/a", nil)
			source.set(routeType, "shop/c", routeOf("c.example", 1))
			source.start()
			reader.await("the server is back", []string{"VirtualService shop/b in force", "VirtualService shop/c in force"})

			const last = 500
			for n := range last + 1 { // a flood
				source.set(routeType, "shop/b", routeOf(fmt.Sprintf("b%d.example", n), 1))
				source.set(routeType, fmt.Sprintf("shop/flood-%d", n%10), routeOf(fmt.Sprintf("flood-%d.example", n), int32(n-last)))
			}
			source.set(routeType, "shop/c", nil)
			for n := range 10 {
				source.set(routeType, fmt.Sprintf("shop/flood-%d", n), nil)
			}
			reader.await("the flood has ended", []string{"VirtualService shop/b in force"})
		})
	}
}
