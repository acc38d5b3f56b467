package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	mcpv1 "istio.io/api/mcp/v1alpha1"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const typeOfVirtualServices = "networking.istio.io/v1/VirtualService"

const sourceDocuments = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, labels: {team: a}, annotations: {note: b}}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews}}]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: reviews}
spec: {ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {cert: "", key: "private"}
`

// requestDocuments opens a delta stream with these metadata of the node, requests one type and returns the first
// response.
func requestDocuments(ctx context.Context, t testing.TB, conn *grpc.ClientConn, metadata map[string]any, typeURL string) (*discoveryv3.DeltaDiscoveryResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~127.68.60.2~caller.default~default.svc.cluster.local", Metadata: fields}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}}) // Recv returns the cause of a failure
	return stream.Recv()
}

func TestDocumentsAreServedOnlyToTheIdentitiesOfTheSetting(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, DocumentReaders: []string{"istio-system/reader", "spiffe://cluster.local/ns/other/sa/reader"}})
	reader := map[string]any{"GENERATOR": "api"}
	for _, account := range []string{"istio-system", "other"} {
		response, err := requestDocuments(asBearer(t.Context(), p.token(account, "reader")), t, p.dial(), reader, typeOfVirtualServices)
		if err != nil || len(response.GetResources()) != 1 || response.GetResources()[0].GetName() != "default/reviews" {
			t.Errorf("%s/reader receives %v, %v", account, response, err)
		}
	}
	allowed := asBearer(t.Context(), p.token("istio-system", "reader"))
	for _, typeURL := range []string{"v1/Service", "v1/Secret", "networking.istio.io/v7/VirtualService", "type.googleapis.com/envoy.config.cluster.v3.Cluster"} {
		if response, err := requestDocuments(allowed, t, p.dial(), reader, typeURL); err != nil || len(response.GetResources()) != 0 {
			t.Errorf("the reader receives %v, %v for %s", response, err, typeURL)
		}
	}

	sidecar := asBearer(t.Context(), p.token("default", "caller"))
	for name, ctx := range map[string]context.Context{
		"a sidecar": sidecar, "an account with that name in another namespace": asBearer(t.Context(), p.token("default", "reader")),
		"another account of the root namespace": asBearer(t.Context(), p.token("istio-system", "reader2")),
	} {
		if response, err := requestDocuments(ctx, t, p.dial(), reader, typeOfVirtualServices); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "--document-readers") {
			t.Errorf("%s receives %v, %v", name, response, err)
		}
	}
	own := map[string]any{"NAMESPACE": "default", "SERVICE_ACCOUNT": "caller", "INTERCEPTION_MODE": "NONE", "APP_ADDRESS": "127.68.60.3", "INSTANCE_IPS": "127.68.60.2"}
	if response, err := requestDocuments(sidecar, t, p.dial(), own, typeOfVirtualServices); err != nil || len(response.GetResources()) != 0 {
		t.Errorf("a sidecar receives %v, %v", response, err)
	}
	if _, err := requestDocuments(t.Context(), t, p.dial(), reader, typeOfVirtualServices); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a client without a credential receives %v", err)
	}
	plain, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := requestDocuments(t.Context(), t, plain, reader, typeOfVirtualServices); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a client of the plaintext port receives %v", err)
	}
}

func TestNoClientReadsDocumentsByDefault(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	ctx := asBearer(t.Context(), p.token("istio-system", "istiod"))
	if response, err := requestDocuments(ctx, t, p.dial(), map[string]any{"GENERATOR": "api"}, typeOfVirtualServices); status.Code(err) != codes.PermissionDenied {
		t.Errorf("it receives %v, %v", response, err)
	}
	for _, reader := range []string{"reader", "istio-system/", "/reader", "spiffe://cluster.local/reader", "istio-system/a/b", "*/*/*"} {
		if _, err := controlplane.New(controlplane.Config{ConfigDirs: []string{dir}, StateDir: filepath.Join(t.TempDir(), "state"), Ports: freePorts, DocumentReaders: []string{reader}}); err == nil || !strings.Contains(err.Error(), "--document-readers") {
			t.Errorf("%q: %v", reader, err)
		}
	}
}

// feed returns the configuration of a control plane that the control plane p feeds, with a token for istio-system/reader.
func (p *testServer) feed(t testing.TB) controlplane.Config {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(p.token("istio-system", "reader")), 0o600); err != nil {
		t.Fatal(err)
	}
	return controlplane.Config{
		Ports: freePorts, ConfigSourceTokenFile: token,
		Mesh: &meshconfig.MeshConfig{ConfigSources: []*meshconfig.ConfigSource{{
			Address:     "xds://" + p.SecureAddr().String(),
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: string(p.Authority().RootPEM())},
		}}},
	}
}

// awaitDocuments waits for the documents of a kind.
func (p *testServer) awaitDocuments(kind config.Kind, want ...string) {
	p.t.Helper()
	testenv.Eventually(p.t, "the documents are in force", func() error {
		var got []string
		for _, d := range p.Status().Documents {
			if d.Key.Kind == kind && d.State == config.InForce {
				got = append(got, d.Key.Namespace+"/"+d.Key.Name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%v, not %v", got, want)
		}
		return nil
	})
}

func TestControlPlaneFeedsAnother(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	first := start(t, controlplane.Config{ConfigDirs: []string{dir}, StateDir: state, Ports: freePorts, DocumentReaders: []string{"istio-system/reader"}})
	own := t.TempDir()
	write(t, filepath.Join(own, "own.yaml"), serviceOfReviews)
	cfg := first.feed(t)
	cfg.ConfigDirs = []string{own}
	second := start(t, cfg)
	second.awaitDocuments(config.VirtualService, "default/reviews")
	second.awaitDocuments(config.PeerAuthentication, "istio-system/default")
	second.awaitDocuments(config.Service, "default/reviews") // the one of its directory
	if _, metrics := second.get("/metrics"); !strings.Contains(metrics, `pilotfish_config_source_connected{source="xds://`+first.SecureAddr().String()+`"} 1`) ||
		!strings.Contains(metrics, `pilotfish_config_source_documents{source="xds://`+first.SecureAddr().String()+`"} 2`) {
		t.Errorf("the metrics are\n%s", metrics)
	}

	// A document of the directory has precedence, and a finding reports the other one.
	write(t, filepath.Join(own, "mesh.yaml"), strings.ReplaceAll(strictPolicy, "STRICT", "PERMISSIVE"))
	second.awaitProblem("another source has a PeerAuthentication of this name")
	if err := os.Remove(filepath.Join(own, "mesh.yaml")); err != nil {
		t.Fatal(err)
	}

	// An edit, and a document that the first control plane refuses: its last accepted version stays in force.
	write(t, filepath.Join(dir, "more.yaml"), strings.ReplaceAll(strings.SplitN(sourceDocuments, "---", 2)[0], "name: reviews", "name: more"))
	second.awaitDocuments(config.VirtualService, "default/more", "default/reviews")

	// The first control plane is away.
	ports := first.samePorts()
	first.stop()
	second.awaitProblem("[PF0013]")
	second.awaitDocuments(config.VirtualService, "default/more", "default/reviews")
	if ok, reason := second.Health(); !ok || !strings.Contains(reason, "stay in force") {
		t.Errorf("the health is %v, %q", ok, reason)
	}
	if err := os.Remove(filepath.Join(dir, "more.yaml")); err != nil {
		t.Fatal(err)
	}
	start(t, controlplane.Config{ConfigDirs: []string{dir}, StateDir: state, Ports: ports, DocumentReaders: []string{"istio-system/reader"}})
	second.awaitDocuments(config.VirtualService, "default/reviews")
}

func TestReceivedDocumentsAreNotServedAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	first := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, DocumentReaders: []string{"istio-system/reader"}})
	cfg := first.feed(t)
	cfg.DocumentReaders = []string{"istio-system/reader"}
	second := start(t, cfg)
	second.awaitDocuments(config.VirtualService, "default/reviews")
	ctx := asBearer(t.Context(), second.token("istio-system", "reader"))
	response, err := requestDocuments(ctx, t, second.dial(), map[string]any{"GENERATOR": "api"}, typeOfVirtualServices)
	if err != nil || len(response.GetResources()) != 0 {
		t.Errorf("it receives %v, %v", response, err)
	}
}

func TestProxiesWaitForTheDocumentsOfTheSource(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	first := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts}) // no reader is allowed
	cfg := first.feed(t)
	cfg.StateDir = filepath.Join(t.TempDir(), "state")
	second, err := controlplane.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- second.Run(ctx) }()
	testenv.Eventually(t, "the cause is reported", func() error {
		if ok, reason := second.Health(); ok || !strings.Contains(reason, "--document-readers") {
			return fmt.Errorf("the health is %v, %q", ok, reason)
		}
		return nil
	})
	proxy := &testServer{Server: second, t: t}
	own := map[string]any{"NAMESPACE": "default", "SERVICE_ACCOUNT": "caller", "INTERCEPTION_MODE": "NONE", "APP_ADDRESS": "127.68.60.3", "INSTANCE_IPS": "127.68.60.2"}
	response, err := requestDocuments(asBearer(t.Context(), proxy.token("default", "caller")), t, proxy.dial(), own, "type.googleapis.com/envoy.config.cluster.v3.Cluster")
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a proxy receives %v, %v", response, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestReaderWithACertificate(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	first := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, DocumentReaders: []string{"istio-system/reader"}})
	csr, keyPEM := request(t, "spiffe://cluster.local/ns/istio-system/sa/reader")
	issued, err := securityv1.NewIstioCertificateServiceClient(first.dial()).CreateCertificate(asBearer(t.Context(), first.token("istio-system", "reader")), &securityv1.IstioCertificateRequest{Csr: string(csr)})
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	write(t, cert, strings.Join(issued.GetCertChain(), ""))
	write(t, key, string(keyPEM))
	cfg := first.feed(t)
	cfg.ConfigSourceTokenFile = ""
	settings := cfg.Mesh.ConfigSources[0].TlsSettings
	settings.Mode, settings.ClientCertificate, settings.PrivateKey = networking.ClientTLSSettings_MUTUAL, cert, key
	start(t, cfg).awaitDocuments(config.VirtualService, "default/reviews")
}

// sotwReader is a client of the state-of-the-world variant that sends the requests of Istio's control plane: the first one
// already has a nonce.
type sotwReader struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// next returns the names in the next response, after it has sent the ACK.
func (r *sotwReader) next() []string {
	r.t.Helper()
	response, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, body := range response.GetResources() {
		document := &mcpv1.Resource{}
		if err := body.UnmarshalTo(document); err != nil {
			r.t.Fatal(err)
		}
		names = append(names, document.GetMetadata().GetName())
	}
	if err := r.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: response.GetTypeUrl(), ResponseNonce: response.GetNonce(), VersionInfo: response.GetVersionInfo()}); err != nil {
		r.t.Fatal(err)
	}
	return names
}

func TestClientsWithoutDeltaReceiveAllDocumentsOfAKind(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, DocumentReaders: []string{"istio-system/reader"}})
	ctx, cancel := context.WithTimeout(asBearer(t.Context(), p.token("istio-system", "reader")), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(p.dial()).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"GENERATOR": "api"})
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&discoveryv3.DiscoveryRequest{
		Node:    &corev3.Node{Id: "sidecar~10.0.0.1~istiod.istio-system~istio-system.svc.cluster.local", Metadata: metadata},
		TypeUrl: typeOfVirtualServices, ResponseNonce: time.Now().String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &sotwReader{t, stream}
	if got := r.next(); !slices.Equal(got, []string{"default/reviews"}) {
		t.Fatalf("the first response has %v", got)
	}
	more := filepath.Join(dir, "more.yaml")
	write(t, more, strings.ReplaceAll(strings.SplitN(sourceDocuments, "---", 2)[0], "name: reviews", "name: more"))
	if got := r.next(); !slices.Equal(got, []string{"default/more", "default/reviews"}) {
		t.Fatalf("after the addition, the response has %v", got)
	}
	if err := os.Remove(more); err != nil {
		t.Fatal(err)
	}
	if got := r.next(); !slices.Equal(got, []string{"default/reviews"}) {
		t.Fatalf("after the removal, the response has %v", got)
	}
}
