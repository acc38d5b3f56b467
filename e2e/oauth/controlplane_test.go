package oauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/pkg/client"
	"github.com/zitadel/oidc/v3/pkg/client/rp"
	"github.com/zitadel/oidc/v3/pkg/client/tokenexchange"
	"github.com/zitadel/oidc/v3/pkg/oidc"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// meshControlPlane runs the embedded control plane, and returns it with an HTTP client that trusts its root.
func meshControlPlane(t *testing.T) (*controlplane.Server, *http.Client) {
	t.Helper()
	plane, err := controlplane.New(controlplane.Config{StateDir: t.TempDir(), Ports: controlplane.Ports{
		Plain: controlplane.NoPort, Secure: controlplane.NoPort, Monitoring: controlplane.NoPort, Tokens: controlplane.FreePort}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- plane.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(plane.Authority().RootPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return plane, &http.Client{Timeout: 10 * time.Second, Transport: transport}
}

func TestControlPlaneTokensPassExternalVerifier(t *testing.T) {
	plane, http := meshControlPlane(t)
	issuer := "https://" + plane.TokensAddr().String()
	own, err := plane.Authority().IssueToken("shop", "web", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	exchanger, err := tokenexchange.NewTokenExchanger(t.Context(), issuer, tokenexchange.WithHTTPClient(http))
	if err != nil {
		t.Fatal(err)
	}
	got, err := tokenexchange.ExchangeToken(t.Context(), exchanger, own, oidc.JWTTokenType, "", "", nil,
		[]string{wanted}, nil, oidc.JWTTokenType)
	if err != nil {
		t.Fatal(err)
	}

	discovery, err := client.Discover(t.Context(), issuer, http)
	if err != nil {
		t.Fatal(err)
	}
	verifier := rp.NewIDTokenVerifier(discovery.Issuer, wanted, rp.NewRemoteKeySet(http, discovery.JwksURI),
		rp.WithSupportedSigningAlgorithms(discovery.IDTokenSigningAlgValuesSupported...))
	claims, err := rp.VerifyIDToken[*oidc.IDTokenClaims](t.Context(), got.AccessToken, verifier)
	if err != nil {
		t.Fatal(err)
	}
	if claims.Subject != "spiffe://cluster.local/ns/shop/sa/web" {
		t.Errorf("the token is %s's", claims.Subject)
	}
	other := rp.NewIDTokenVerifier(discovery.Issuer, "https://other.example/", rp.NewRemoteKeySet(http, discovery.JwksURI),
		rp.WithSupportedSigningAlgorithms(discovery.IDTokenSigningAlgValuesSupported...))
	if _, err := rp.VerifyIDToken[*oidc.IDTokenClaims](t.Context(), got.AccessToken, other); err == nil {
		t.Error("somebody else takes the token too")
	}
}
