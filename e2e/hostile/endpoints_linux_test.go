package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// endpointAttacks are attempts to reach a proxy's own sockets and ports through endpoints of configuration documents.
var endpointAttacks = []attack{{
	name:     "a tenant's endpoints lead through a shared gateway to its sockets and its admin and status ports",
	position: tenant,
	limit:    "no connection: 503 for each, and a finding for each document",
	service:  "the gateway serves other endpoints, and a socket that the platform allows",
	run:      attackByEndpoints,
}}

// endpointDocuments are the tenant's documents. Those of edgeDir/apps and of the shop are legitimate.
func endpointDocuments(edgeDir string) string {
	const byAddress, byName = "STATIC", "DNS"
	return tenantEntry("sds", "GRPC", byAddress, "{address: 'unix://"+edgeDir+"/gw/var/run/secrets/workload-spiffe-uds/socket'}") +
		tenantEntry("xds", "GRPC", byAddress, "{address: 'unix://"+edgeDir+"/gw/etc/istio/proxy/XDS'}") +
		tenantEntry("admin", "HTTP", byAddress, "{address: 127.0.0.1, ports: {port: 15000}}") +
		tenantEntry("admin-mapped", "HTTP", byAddress, "{address: '::ffff:127.0.0.1', ports: {port: 15000}}") +
		tenantEntry("admin-name", "HTTP", byName, "{address: localhost, ports: {port: 15000}}") +
		tenantEntry("admin-number", "HTTP", byName, "{address: '0x7f000001', ports: {port: 15000}}") +
		tenantEntry("status", "HTTP", byAddress, "{address: 127.0.0.1, ports: {port: 15020}}") +
		tenantEntry("status-any", "HTTP", byAddress, "{address: 0.0.0.0, ports: {port: 15020}}") +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: status-alias, namespace: tenant}\nspec: {type: ExternalName, externalName: 127.0.0.1, ports: [{port: 80, name: http}, {port: 15020, name: http-status}]}\n" +
		strings.Replace(tenantRoute("status-alias", "status-alias.tenant.svc.cluster.local"), "number: 80", "number: 15020", 1) +
		"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: admin-request, namespace: tenant}\nspec: {hosts: [localhost], resolution: NONE, ports: [{number: 80, name: port, protocol: HTTP, targetPort: 15000}]}\n" +
		tenantRoute("admin-request", "localhost") +
		"---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: admin-workload, namespace: tenant}\nspec: {address: 127.0.0.1, labels: {app: admin}}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: admin-workload, namespace: tenant}\nspec: {selector: {app: admin}, ports: [{port: 80, name: http, targetPort: 15000}]}\n" +
		tenantRoute("admin-workload", "admin-workload") +
		tenantEntry("socket", "HTTP", byAddress, "{address: 'unix://"+edgeDir+"/apps/app.sock'}") +
		tenantEntry("shop", "HTTP", byAddress, "{address: "+edgeShop+", ports: {port: 8080}}")
}

func attackByEndpoints(t *testing.T) {
	e := startEdge(t, endpointDocuments)
	e.write("apps/.keep", "")
	e.serve("unix", e.path("apps/app.sock"), "the socket")
	e.serve("tcp", edgeShop+":8080", "the shop")
	e.requireService(t)

	t.Run("the gateway's SPIFFE key is stolen and renewed", func(t *testing.T) { e.renew(t, stealWorkloadKey(t, e.grpc(t, "sds.tenant.example"))) })
	t.Run("the keys of public sites are read from the xDS socket", func(t *testing.T) { readXDS(t, e.grpc(t, "xds.tenant.example"), secretType, "kubernetes://site") })
	t.Run("the configuration is read from the xDS socket", func(t *testing.T) { readXDS(t, e.grpc(t, "xds.tenant.example"), clusterType, "*") })
	for _, name := range []string{"admin", "admin-mapped", "admin-name", "admin-number", "admin-request", "admin-workload"} {
		t.Run("the admin interface is read by "+name, func(t *testing.T) { e.requireRefused(t, http.MethodGet, name, "/config_dump") })
	}
	e.requireService(t)
	for _, name := range []string{"status", "status-any", "status-alias"} {
		t.Run("the agent is ended by "+name, func(t *testing.T) { e.requireRefused(t, http.MethodPost, name, "/quitquitquit") })
	}
	t.Run("Envoy is ended", func(t *testing.T) { e.requireRefused(t, http.MethodPost, "admin", "/quitquitquit") })
	e.requireService(t)
	t.Run("each document has a finding", e.requireFindings)
}

// requireService fails the test unless the gateway serves what is legitimate.
func (e *sharedEdge) requireService(t *testing.T) {
	t.Helper()
	for name, want := range map[string]string{"shop": "the shop", "socket": "the socket"} {
		testenv.Eventually(t, name+" is served", func() error {
			if code, body := e.request(t, http.MethodGet, "https://"+name+".tenant.example/"); code != http.StatusOK || body != want {
				return fmt.Errorf("%d %q", code, body)
			}
			return nil
		})
	}
}

// requireRefused fails the test unless the gateway has no endpoint for a tenant's host.
func (e *sharedEdge) requireRefused(t *testing.T, method, name, path string) {
	t.Helper()
	code, body := e.request(t, method, "https://"+name+".tenant.example"+path)
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "no healthy upstream") {
		t.Errorf("%s %s of %s is answered with %d: %.200s", method, path, name, code, body)
	}
}

// edgeNode is the gateway's node, whose labels the Gateway selects.
func edgeNode(t *testing.T) *corev3.Node {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "edge", "LABELS": map[string]any{"app": "edge"}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "router~" + edgeGateway + "~edge.edge~edge.svc.cluster.local", Cluster: "edge", Metadata: metadata}
}

// requireUnavailable fails the test unless a call failed because the proxy has no endpoint for it.
func requireUnavailable(t *testing.T, err error) {
	t.Helper()
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no healthy upstream") {
		t.Errorf("the call was not refused by the proxy: %v", err)
	}
}

// stealWorkloadKey returns the certificate and the key that the agent's SDS socket serves through a proxy; nil when it is out of
// reach.
func stealWorkloadKey(t *testing.T, conn *grpc.ClientConn) *tlsv3.TlsCertificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: edgeNode(t), TypeUrl: secretType, ResourceNames: []string{"default"}}); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil || len(got.GetResources()) == 0 {
		requireUnavailable(t, err)
		return nil
	}
	var secret tlsv3.Secret
	if err := got.GetResources()[0].UnmarshalTo(&secret); err != nil {
		t.Fatal(err)
	}
	t.Errorf("an outsider has the gateway's SPIFFE key (%d bytes)", len(secret.GetTlsCertificate().GetPrivateKey().GetInlineBytes()))
	return secret.GetTlsCertificate()
}

// renew gets another certificate for the gateway's identity with a stolen one.
func (e *sharedEdge) renew(t *testing.T, stolen *tlsv3.TlsCertificate) {
	t.Helper()
	if stolen == nil {
		return
	}
	cert, err := tls.X509KeyPair(stolen.GetCertificateChain().GetInlineBytes(), stolen.GetPrivateKey().GetInlineBytes())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+edgePlane+":15012", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, // #nosec G402 -- a test of what the server accepts
	})), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return e.dial(ctx, address) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), &securityv1.IstioCertificateRequest{
		Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), ValidityDuration: int64((24 * time.Hour).Seconds()),
	})
	if err != nil {
		t.Logf("the stolen certificate is not renewed: %v", err)
		return
	}
	t.Errorf("the stolen certificate is renewed: %d certificates", len(answer.GetCertChain()))
}

// readXDS requests resources of the agent's xDS socket through a proxy.
func readXDS(t *testing.T, conn *grpc.ClientConn, typeURL, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: edgeNode(t), TypeUrl: typeURL, ResourceNamesSubscribe: []string{name}}); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	for {
		got, err := stream.Recv()
		if err != nil {
			requireUnavailable(t, err)
			return
		}
		t.Errorf("an outsider has %d resources (%d bytes) of the gateway: %s", len(got.GetResources()), proto.Size(got), typeURL)
		if len(got.GetResources()) > 0 {
			return
		}
	}
}

// requireFindings fails the test unless the control plane logs a finding for each of the tenant's documents, and analyze
// reports them too.
func (e *sharedEdge) requireFindings(t *testing.T) {
	report, err := exec.Command(testenv.Bin(t, "pilotfish"), "analyze", e.path("config"), "-o", "lines", "--allow-unix-endpoints", e.path("apps")).CombinedOutput()
	if err == nil {
		t.Error("analyze finds nothing")
	}
	for _, document := range []string{
		"ServiceEntry tenant/sds", "ServiceEntry tenant/xds", "ServiceEntry tenant/admin", "ServiceEntry tenant/admin-mapped", "ServiceEntry tenant/admin-name",
		"ServiceEntry tenant/admin-number", "ServiceEntry tenant/admin-request", "WorkloadEntry tenant/admin-workload",
		"ServiceEntry tenant/status", "ServiceEntry tenant/status-any", "Service tenant/status-alias",
	} {
		testenv.Eventually(t, "the log has the finding of "+document, func() error { return findingOf(document, e.log.String()) })
		if err := findingOf(document, string(report)); err != nil {
			t.Errorf("analyze: %v", err)
		}
	}
	for _, document := range []string{"ServiceEntry tenant/socket", "ServiceEntry tenant/shop"} {
		if findingOf(document, string(report)) == nil {
			t.Errorf("%s has a finding", document)
		}
	}
}

// findingOf returns an error unless a line reports a refused endpoint of a document.
func findingOf(document, lines string) error {
	for line := range strings.Lines(lines) {
		if strings.Contains(line, "PF0112") && strings.Contains(line, document+":") {
			return nil
		}
	}
	return fmt.Errorf("no line with PF0112 is about %s", document)
}
