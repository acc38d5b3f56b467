package controlplane_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// dial connects to the secure port like an agent: it trusts the mesh's root and expects the server name of istiod.
func (p *testServer) dial(certificates ...tls.Certificate) *grpc.ClientConn {
	p.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.Authority().RootPEM()) {
		p.t.Fatal("the root is no certificate")
	}
	conn, err := grpc.NewClient(p.SecureAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: "istiod.istio-system.svc", Certificates: certificates, MinVersion: tls.VersionTLS12,
	})))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *testServer) token(namespace, serviceAccount string) string {
	p.t.Helper()
	token, err := p.Authority().IssueToken(namespace, serviceAccount, time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// asBearer adds a token to a call.
func asBearer(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// clusters opens a stream for a node and requests its clusters.
func clusters(ctx context.Context, t *testing.T, conn *grpc.ClientConn, namespace, serviceAccount string) (*discoveryv3.DeltaDiscoveryResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	labels, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "SERVICE_ACCOUNT": serviceAccount,
		"INTERCEPTION_MODE": "NONE", "APP_ADDRESS": "127.68.60.3", "INSTANCE_IPS": "127.68.60.2"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~127.68.60.2~a." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: labels}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err) // EOF: the stream was already refused, and Recv returns the error
	}
	return stream.Recv()
}

// request creates a key and a certificate request for the identity.
func request(t *testing.T, id string) (csr, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func startServerWithoutConfig(t *testing.T) *testServer {
	return start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}})
}

func wantCode(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("error is %v, want %v", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not contain %q", err, w)
		}
	}
}

func TestSecurePortAcceptsTokenOfTheNodesServiceAccount(t *testing.T) {
	p := startServerWithoutConfig(t)
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	if _, err := clusters(ctx, t, p.dial(), "shop", "reviews"); err != nil {
		t.Fatal(err)
	}
}

func TestSecurePortRefusesUnauthenticatedClients(t *testing.T) {
	p := startServerWithoutConfig(t)
	_, err := clusters(t.Context(), t, p.dial(), "shop", "reviews")
	wantCode(t, err, codes.Unauthenticated, "token")
	_, err = clusters(asBearer(t.Context(), p.token("shop", "reviews")+"x"), t, p.dial(), "shop", "reviews")
	wantCode(t, err, codes.Unauthenticated)
}

func TestSecurePortRefusesNodeOfAnotherAccount(t *testing.T) {
	p := startServerWithoutConfig(t)
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	_, err := clusters(ctx, t, p.dial(), "bank", "reviews")
	wantCode(t, err, codes.PermissionDenied, "bank", "shop")
	_, err = clusters(ctx, t, p.dial(), "shop", "ratings")
	wantCode(t, err, codes.PermissionDenied, "ratings", "reviews")
	if clients := p.Status().Clients; len(clients) != 0 {
		t.Fatalf("refused clients are listed: %+v", clients)
	}
}

func TestSecurePortAcceptsCertificatesThatItSigned(t *testing.T) {
	p := startServerWithoutConfig(t)
	id := "spiffe://cluster.local/ns/shop/sa/reviews"
	csr, key := request(t, id)
	client := securityv1.NewIstioCertificateServiceClient(p.dial())
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	resp, err := client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 3600})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(strings.Join(resp.GetCertChain(), "")), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clusters(t.Context(), t, p.dial(pair), "shop", "reviews"); err != nil {
		t.Fatal(err)
	}
	_, err = clusters(t.Context(), t, p.dial(pair), "bank", "reviews")
	wantCode(t, err, codes.PermissionDenied)
}

func TestSecurePortSignsOnlyForTheAuthenticatedAccount(t *testing.T) {
	p := startServerWithoutConfig(t)
	csr, _ := request(t, "spiffe://cluster.local/ns/bank/sa/vault")
	client := securityv1.NewIstioCertificateServiceClient(p.dial())
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	_, err := client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr)})
	wantCode(t, err, codes.PermissionDenied)
}

func TestCertificateRequestsOver32KiBAreRefused(t *testing.T) {
	p := startServerWithoutConfig(t)
	client := securityv1.NewIstioCertificateServiceClient(p.dial())
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	for size, want := range map[int]codes.Code{
		31 << 10: codes.InvalidArgument, // accepted by size, but not a CSR
		32 << 10: codes.ResourceExhausted,
		8 << 20:  codes.ResourceExhausted,
	} {
		_, err := client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: strings.Repeat("x", size)})
		wantCode(t, err, want)
	}
	csr, _ := request(t, "spiffe://cluster.local/ns/shop/sa/reviews")
	if _, err := client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr)}); err != nil {
		t.Errorf("a request of usual size on the same connection: %v", err)
	}
}

func TestRefusalsOfUnauthenticatedCallersAreLoggedOnce(t *testing.T) {
	var log testenv.Buffer
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	plain, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	for range 20 {
		_, err := securityv1.NewIstioCertificateServiceClient(p.dial()).CreateCertificate(t.Context(), &securityv1.IstioCertificateRequest{})
		wantCode(t, err, codes.Unauthenticated)
		if status, _ := p.requestToken("forged", nil); status != http.StatusBadRequest {
			t.Fatalf("a forged token gets status %d", status)
		}
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(plain).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "no node of Istio"}, TypeUrl: xds.ClusterType})
		_, err = stream.Recv()
		wantCode(t, err, codes.InvalidArgument)
	}
	for _, text := range []string{"refused a certificate", "refused a token exchange", "refused a proxy", "refused a stream"} {
		if n := strings.Count(log.String(), text); n != 1 {
			t.Errorf("%d lines report that %s, for 20 calls:\n%s", n, text, log.String())
		}
	}
}

func TestConnectionsOfUnauthenticatedClientsAreLoggedOnce(t *testing.T) {
	var log testenv.Buffer
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	plain, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	for range 5 {
		if _, err := clusters(t.Context(), t, plain, "shop", "reviews"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := clusters(asBearer(t.Context(), p.token("shop", "reviews")), t, p.dial(), "shop", "reviews"); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "the ends of the logged connections are logged", func() error {
		if n := strings.Count(log.String(), "client disconnected"); n != 3 {
			return fmt.Errorf("%d lines, want 1 of 5 for the plaintext port and 2 for the secure port", n)
		}
		return nil
	})
	if n := strings.Count(log.String(), "client connected"); n != 3 {
		t.Errorf("%d connections are logged, want 1 of 5 on the plaintext port and 2 on the secure port:\n%s", n, log.String())
	}
}

func TestEveryRefusalOfAnAuthenticatedProxyIsLogged(t *testing.T) {
	var log testenv.Buffer
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		_, err := clusters(asBearer(t.Context(), p.token("shop", "reviews")), t, p.dial(), "bank", "reviews")
		wantCode(t, err, codes.PermissionDenied)
	}
	if n := strings.Count(log.String(), "refused a proxy"); n != 3 {
		t.Errorf("%d lines report 3 refused proxies:\n%s", n, log.String())
	}
}

func TestTokensAndRootSurviveARestart(t *testing.T) {
	state := t.TempDir()
	cfg := controlplane.Config{Ports: freePorts, StateDir: state, Stores: []config.Store{config.NewMemoryStore()}}
	first := start(t, cfg)
	token, root := first.token("shop", "reviews"), string(first.Authority().RootPEM())
	first.stop()
	second := start(t, cfg)
	if string(second.Authority().RootPEM()) != root {
		t.Fatal("the root changed")
	}
	if _, err := clusters(asBearer(t.Context(), token), t, second.dial(), "shop", "reviews"); err != nil {
		t.Fatal(err)
	}
}
