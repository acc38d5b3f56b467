package controlplane_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const edgeDocuments = `apiVersion: v1
kind: Secret
metadata: {name: one, namespace: edge%s}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: 192.0.2.1, labels: {app: edge}, serviceAccount: gateway}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews, namespace: edge}
spec: {address: 192.0.2.2, labels: {app: reviews}, serviceAccount: reviews}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {app: edge}
  servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: one}}]
`

// withSecret starts a control plane with a Gateway and the Secret that contains the Gateway's certificate and key.
func withSecret(t *testing.T, annotations string) (p *testServer, dir, key string) {
	t.Helper()
	dir = t.TempDir()
	cert, private := testpki.New(t, "outside").Server(t, "shop.example.com")
	key = base64.StdEncoding.EncodeToString(private)
	write(t, filepath.Join(dir, "edge.yaml"), fmt.Sprintf(edgeDocuments, annotations, base64.StdEncoding.EncodeToString(cert), key))
	return start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts}), dir, key
}

// gatewayStream opens a stream for a node with the labels of the gateway, and requests a type.
func gatewayStream(ctx context.Context, t *testing.T, conn *grpc.ClientConn, kind, namespace, typeURL string, names ...string) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, *discoveryv3.DeltaDiscoveryResponse, error) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	about, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "LABELS": map[string]any{"app": "edge"}})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: kind + "~127.196.60.2~a." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: about}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	return stream, got, err
}

// TestOnlyAuthenticatedGatewaysGetTheirSecrets uses real connections. A client with another account gets no Secret,
// even if its node claims to be the gateway.
func TestOnlyAuthenticatedGatewaysGetTheirSecrets(t *testing.T) {
	p, _, key := withSecret(t, "")
	restricted, _, _ := withSecret(t, ", annotations: {pilotfish.dev/service-accounts: 'other, gateway'}")
	plain := func(p *testServer) *grpc.ClientConn {
		conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	for _, c := range []struct {
		as              string
		p               *testServer
		conn            *grpc.ClientConn
		namespace, sa   string // identity in the token; empty: no token
		kind, claims    string // node type and namespace that the client sends in its node
		given, connects bool
	}{
		{"the gateway", p, p.dial(), "edge", "gateway", "router", "edge", true, true},
		{"another service account of the namespace", p, p.dial(), "edge", "reviews", "router", "edge", false, true},
		{"an account that no workload has", p, p.dial(), "edge", "other", "router", "edge", false, true},
		{"plaintext port, without a token", p, plain(p), "", "", "router", "edge", false, true},
		{"plaintext port, with a token", p, plain(p), "edge", "gateway", "router", "edge", false, true},
		{"a sidecar of the namespace", p, p.dial(), "edge", "gateway", "sidecar", "edge", false, true},
		{"a gateway of another namespace", p, p.dial(), "shop", "gateway", "router", "shop", false, true},
		{"a node with the namespace of another account", p, p.dial(), "shop", "gateway", "router", "edge", false, false},
		{"a service account in the Secret's annotation", restricted, restricted.dial(), "edge", "gateway", "router", "edge", true, true},
		{"a service account that is not in the Secret's annotation", restricted, restricted.dial(), "edge", "reviews", "router", "edge", false, true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if c.sa != "" {
			ctx = asBearer(ctx, c.p.token(c.namespace, c.sa))
		}
		_, got, err := gatewayStream(ctx, t, c.conn, c.kind, c.claims, xds.SecretType, "kubernetes://one")
		if (err == nil) != c.connects || (len(got.GetResources()) > 0) != c.given {
			t.Errorf("%s: %d secrets, %v", c.as, len(got.GetResources()), err)
		}
		if _, page := c.p.get("/debug/config_dump?proxyID=" + c.kind + "~127.196.60.2~a." + c.claims + "~" + c.claims + ".svc.cluster.local"); strings.Contains(page, key[:40]) || strings.Contains(page, "privateKey\":{\"inlineBytes") {
			t.Errorf("%s: the debug page /debug/config_dump shows the private key", c.as)
		}
	}
}
