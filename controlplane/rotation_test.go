package controlplane_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The command that rotates the root writes files only; the running control plane must detect and distribute the new
// root.
func TestControlPlaneDistributesRootCreatedByCommand(t *testing.T) {
	dir := t.TempDir()
	p := start(t, controlplane.Config{StateDir: dir, Ports: freePorts})
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~a.default~default.svc.cluster.local", Metadata: fields}, TypeUrl: xds.ProxyConfigType,
	}); err != nil {
		t.Fatal(err)
	}
	receivedRoots := func() []string {
		t.Helper()
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.ProxyConfigType, ResponseNonce: answer.GetNonce()}); err != nil {
			t.Fatal(err)
		}
		config := &meshconfig.ProxyConfig{}
		if err := answer.GetResources()[0].GetResource().UnmarshalTo(config); err != nil {
			t.Fatal(err)
		}
		return config.GetCaCertificatesPem()
	}
	old := receivedRoots()
	command, err := ca.Load(dir, ca.Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []ca.RotationStep{ca.Announce, ca.Activate, ca.Retire} {
		if took, err := command.Rotate(true); err != nil || took != step {
			t.Fatalf("%s: %v", took, err)
		}
		if roots := receivedRoots(); !slices.Equal(roots, []string{string(command.RootPEM())}) || slices.Equal(roots, old) {
			t.Errorf("after %s agents receive %q, want %q", step, roots, command.RootPEM())
		}
		testenv.Eventually(t, "the control plane applies the step", func() error {
			if !bytes.Equal(p.Authority().RootPEM(), command.RootPEM()) {
				return errors.New("the control plane still has other roots")
			}
			return nil
		})
	}
}

// The control plane fetches the keys of a token issuer from the URL in the issuer's discovery document.
func TestTokensAreVerifiedByTheIssuersPublishedKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a", Algorithm: "ES256", Use: "sig"}}})
	})
	p := start(t, controlplane.Config{Ports: freePorts, Authority: controlplane.AuthorityConfig{Issuer: issuer.URL}})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "a"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": issuer.URL, "sub": "system:serviceaccount:shop:reviews", "aud": ca.TokenAudience, "exp": time.Now().Add(time.Hour).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
	testenv.Eventually(t, "the token is accepted", func() error {
		who, err := p.Authority().Authenticate(ctx)
		if err == nil && who.String() != "spiffe://cluster.local/ns/shop/sa/reviews" {
			t.Errorf("the token proves %s", who)
		}
		return err
	})
}
