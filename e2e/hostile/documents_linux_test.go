package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// documentAttacks are attempts to read the documents of the whole mesh, which only --document-readers may.
var documentAttacks = []attack{
	{
		name: "a client without credentials reads all documents", position: unauthenticated,
		limit: "no document, on the TLS port and the plaintext port", service: "the listed account reads all documents", run: readDocumentsWithoutCredentials,
	},
	{
		name: "a workload reads all documents", position: workload,
		limit: "no document for any other account, whatever its node claims", service: "the listed account reads all documents", run: readDocumentsAsWorkload,
	},
	{
		name: "a denied reader continues to read documents", position: workload,
		limit: "its stream ends, and it gets nothing more", service: "another listed account reads all documents", run: readDocumentsAfterDenial,
	},
}

const privateDocuments = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: checkout, namespace: shop}
spec: {hosts: [checkout], http: [{route: [{destination: {host: checkout}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: checkout, namespace: shop}
spec: {selector: {matchLabels: {app: checkout}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/page]}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: checkout, namespace: shop}
spec: {selector: {app: checkout}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: shop}
stringData: {cert: "", key: "private"}
`

// readers are the accounts that may read the documents in these rows.
const readers = "istio-system/edge,shop/mirror"

// documentTypes are the types that attackers request. The control plane serves the last two to no client.
var documentTypes = []string{"networking.istio.io/v1/VirtualService", "security.istio.io/v1/AuthorizationPolicy", "v1/Service", "v1/Secret"}

// readerNode is a node that requests documents.
func readerNode(namespace string) node {
	return node{"sidecar", "192.0.2.7", namespace, map[string]any{"GENERATOR": "api"}}
}

// wantDocuments checks that a listed account reads the documents of Istio's kinds and no others.
func (p *plane) wantDocuments(t *testing.T, namespace, account string) {
	t.Helper()
	ctx := withToken(t, p.token(t, namespace, account))
	for n, typeURL := range documentTypes {
		_, response, err := readerNode(namespace).stream(ctx, t, p.dial(t), typeURL, "*")
		if err != nil {
			t.Errorf("%s/%s reads %s: %v", namespace, account, typeURL, err)
			continue
		}
		var want []string
		if n < 2 {
			want = []string{"shop/checkout"}
		}
		if got := namesOf(response); !slices.Equal(got, want) {
			t.Errorf("%s/%s reads %v of %s, want %v", namespace, account, got, typeURL, want)
		}
	}
}

func namesOf(response *discoveryv3.DeltaDiscoveryResponse) []string {
	var names []string
	for _, r := range response.GetResources() {
		names = append(names, r.GetName())
	}
	return names
}

// wantNoDocuments requests documents in each way that the protocol permits.
func wantNoDocuments(ctx context.Context, t *testing.T, what string, conn *grpc.ClientConn, claims ...node) {
	t.Helper()
	for _, claim := range claims {
		for _, typeURL := range documentTypes {
			if _, response, err := claim.stream(ctx, t, conn, typeURL, "*"); err == nil && len(response.GetResources()) > 0 {
				t.Errorf("%s, as %v, reads %v of %s", what, claim.metadata, namesOf(response), typeURL)
			}
			if _, response, err := claim.stream(ctx, t, conn, typeURL, "shop/checkout"); err == nil && len(response.GetResources()) > 0 {
				t.Errorf("%s, as %v, reads %v of %s by its name", what, claim.metadata, namesOf(response), typeURL)
			}
			if n, err := claim.countAll(ctx, t, conn, typeURL); err == nil && n > 0 {
				t.Errorf("%s, as %v, reads %d documents of %s in the SotW variant", what, claim.metadata, n, typeURL)
			}
		}
	}
}

// countAll requests a type on a state-of-the-world stream, and returns the number of resources in the first response.
func (n node) countAll(ctx context.Context, t *testing.T, conn *grpc.ClientConn, typeURL string) (int, error) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: n.proto(t), TypeUrl: typeURL}); err != nil && err != io.EOF {
		return 0, err
	}
	response, err := stream.Recv()
	return len(response.GetResources()), err
}

func readDocumentsWithoutCredentials(t *testing.T) {
	plain := testenv.FreePort(t)
	p := startPlane(t, privateDocuments, "--document-readers", readers, "--port", fmt.Sprint(plain))
	claims := []node{readerNode("istio-system"), readerNode("shop"), sidecar("shop")}
	wantNoDocuments(withToken(t, ""), t, "no credential", p.dial(t), claims...)
	wantNoDocuments(withToken(t, "istio-system/edge"), t, "no valid token", p.dial(t), claims...)
	cert, key := testpki.New(t, "cluster.local").Workload(t, "spiffe://cluster.local/ns/istio-system/sa/edge")
	foreign, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	wantNoDocuments(withToken(t, ""), t, "a certificate of another authority", p.dial(t, foreign), claims...)

	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", plain), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantNoDocuments(withToken(t, ""), t, "the plaintext port", conn, claims...)
	// Even the token of a listed account authenticates no client there.
	wantNoDocuments(withToken(t, p.token(t, "istio-system", "edge")), t, "the plaintext port with a token", conn, claims...)
	if _, _, err := readerNode("istio-system").stream(withToken(t, ""), t, conn, documentTypes[0], "*"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the plaintext port answers a reader with %v", err)
	}
	p.wantDocuments(t, "istio-system", "edge")
}

func readDocumentsAsWorkload(t *testing.T) {
	p := startPlane(t, privateDocuments, "--document-readers", readers)
	for _, account := range [][2]string{
		{"shop", "page"}, {"shop", "edge"}, {"istio-system", "mirror"}, {"istio-system", "istiod"}, {"istio-system", "default"}, {"edge", "istio-system"},
	} {
		what := account[0] + "/" + account[1]
		claims := []node{readerNode(account[0]), readerNode("istio-system"), sidecar(account[0])}
		claims = append(claims, node{"sidecar", "192.0.2.7", account[0], map[string]any{"GENERATOR": "api", "SERVICE_ACCOUNT": "edge", "NAMESPACE": "istio-system"}})
		wantNoDocuments(withToken(t, p.token(t, account[0], account[1])), t, "the token of "+what, p.dial(t), claims...)
		wantNoDocuments(withToken(t, ""), t, "the certificate of "+what, p.dial(t, p.mustCertify(t, account[0], account[1]).tls), claims...)
	}
	p.becomeReaderOnOpenStream(t)
	p.wantDocuments(t, "istio-system", "edge")
	p.wantDocuments(t, "shop", "mirror")
}

// becomeReaderOnOpenStream opens the stream of a sidecar, and then claims to be a reader in a later request.
func (p *plane) becomeReaderOnOpenStream(t *testing.T) {
	t.Helper()
	stream, _, err := sidecar("shop").stream(withToken(t, p.token(t, "shop", "page")), t, p.dial(t), clusterType)
	if err != nil {
		t.Fatal(err)
	}
	for _, typeURL := range documentTypes {
		request := &discoveryv3.DeltaDiscoveryRequest{Node: readerNode("istio-system").proto(t), TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}}
		if err := stream.Send(request); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			return // the stream is refused
		}
		if len(response.GetResources()) > 0 {
			t.Errorf("an open stream reads %v of %s", namesOf(response), response.GetTypeUrl())
		}
	}
}

func readDocumentsAfterDenial(t *testing.T) {
	dir := t.TempDir()
	list := dir + "/deny.yaml"
	replaceFile(t, list, "")
	p := startPlane(t, privateDocuments, "--document-readers", readers, "--deny-list", list)
	token := p.token(t, "shop", "mirror")
	stream, response, err := readerNode("shop").stream(withToken(t, token), t, p.dial(t), documentTypes[0], "*")
	if err != nil || len(response.GetResources()) != 1 {
		t.Fatalf("before the denial, the reader reads %v, %v", response, err)
	}
	replaceFile(t, list, "accounts: [shop/mirror]\n")
	if response, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the open stream of a denied reader has %v, %v", response, err)
	}
	wantNoDocuments(withToken(t, token), t, "a denied reader", p.dial(t), readerNode("shop"))
	p.wantDocuments(t, "istio-system", "edge")
}

// replaceFile replaces a file in one step.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
