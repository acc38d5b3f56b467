package oauth

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/pilotfish-mesh/pilotfish/sts"
)

const (
	cluster  = "https://cluster.example"
	workload = "system:serviceaccount:shop:web"
	wanted   = "https://orders.example/"
)

// server is zitadel's OpenID provider with its own storage, which accepts the cluster's tokens as subject tokens.
type server struct {
	*storage.Storage
	key *rsa.PrivateKey
}

func (s *server) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	client, err := s.Storage.GetClientByClientID(ctx, id)
	return signingClient{client}, err
}

// signingClient gets JWTs.
type signingClient struct{ op.Client }

func (signingClient) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func (s *server) VerifyExchangeSubjectToken(_ context.Context, token string, kind oidc.TokenType) (string, string, map[string]any, error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil || kind != oidc.JWTTokenType {
		return "", "", nil, errors.New("not a JWT")
	}
	var claims jwt.Claims
	if err := parsed.Claims(&s.key.PublicKey, &claims); err != nil {
		return "", "", nil, err
	}
	return token, claims.Subject, nil, claims.Validate(jwt.Expected{Issuer: cluster})
}

func (s *server) VerifyExchangeActorToken(context.Context, string, oidc.TokenType) (string, string, map[string]any, error) {
	return "", "", nil, errors.New("no actors here")
}

func (s *server) ValidateTokenExchangeRequest(_ context.Context, r op.TokenExchangeRequest) error {
	if slices.Contains(r.GetScopes(), "admin") {
		return oidc.ErrInvalidScope().WithDescription("admin is not for workloads")
	}
	r.SetRequestedTokenType(oidc.AccessTokenType)
	return nil
}

func (s *server) GetPrivateClaimsFromTokenExchangeRequest(context.Context, op.TokenExchangeRequest) (map[string]any, error) {
	return nil, nil
}

// startProvider runs the server, and returns it with its issuer.
func startProvider(t *testing.T) (*server, string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	storage.RegisterClients(storage.WebClient("agent", "s3cret", "https://agent.example/"))
	var handler http.Handler
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(front.Close)
	s := &server{Storage: storage.NewStorage(storage.NewUserStore(front.URL)), key: key}
	handler = exampleop.SetupServer(front.URL, s, slog.New(slog.DiscardHandler), false)
	return s, front.URL
}

// token is one of the cluster for the workload.
func (s *server) token(t *testing.T, key *rsa.PrivateKey) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: cluster, Subject: workload, Audience: jwt.Audience{"mesh"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

type fixedSecret sts.Secret

func (f fixedSecret) Fetch(context.Context) (sts.Secret, error) { return sts.Secret(f), nil }

// startExchange runs the token exchange, and returns its URL.
func startExchange(t *testing.T, issuer, secret string) string {
	t.Helper()
	endpoint, err := sts.NewEndpoint(sts.EndpointConfig{URL: issuer + "/oauth/token", ClientID: "agent", ClientSecret: fixedSecret(secret)})
	if err != nil {
		t.Fatal(err)
	}
	exchange, err := sts.New(sts.Config{Address: "127.0.0.1:0", Exchanger: endpoint, Check: sts.Check{Issuers: []string{cluster}, Audiences: []string{"mesh"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- exchange.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return "http://" + exchange.Addr().String() + sts.TokenPath
}

type answer struct {
	Status      int    `json:"-"`
	AccessToken string `json:"access_token"`
	IssuedType  string `json:"issued_token_type"`
	TokenType   string `json:"token_type"`
	ExpiresIn   int    `json:"expires_in"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

func exchangeToken(t *testing.T, address, token, scope string) (a answer) {
	t.Helper()
	response, err := http.PostForm(address, url.Values{
		"grant_type": {sts.GrantType}, "subject_token": {token}, "subject_token_type": {sts.JWTType},
		"audience": {wanted}, "scope": {scope},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	a.Status = response.StatusCode
	return a
}

func TestWorkloadTokenIsExchangedForProviderToken(t *testing.T) {
	s, issuer := startProvider(t)
	got := exchangeToken(t, startExchange(t, issuer, "s3cret"), s.token(t, s.key), "openid")
	if got.Status != http.StatusOK || got.TokenType != "Bearer" || got.IssuedType != sts.AccessTokenType || got.ExpiresIn < 200 {
		t.Fatalf("got %+v", got)
	}
	claims := verifyToken(t, issuer, got.AccessToken)
	if claims.Issuer != issuer || claims.Subject != workload || !claims.Audience.Contains(wanted) {
		t.Errorf("the token says %+v", claims)
	}
}

// verifyToken checks a token by the keys that the provider's discovery leads to.
func verifyToken(t *testing.T, issuer, token string) (claims jwt.Claims) {
	t.Helper()
	get := func(address string, into any) {
		response, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if err := json.NewDecoder(response.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	var discovery struct {
		Keys string `json:"jwks_uri"`
	}
	var keys jose.JSONWebKeySet
	get(issuer+"/.well-known/openid-configuration", &discovery)
	get(discovery.Keys, &keys)
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Claims(keys, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestRefusalsOfTheProvider(t *testing.T) {
	s, issuer := startProvider(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		secret, token, scope string
		status               int
		code                 string
	}{
		"a token that somebody else signed":                  {"s3cret", s.token(t, other), "openid", 400, sts.CodeInvalidRequest},
		"a scope that is not for it":                         {"s3cret", s.token(t, s.key), "admin", 400, sts.CodeInvalidScope},
		"an agent that is not known, no fault of the client": {"wrong", s.token(t, s.key), "openid", 500, sts.CodeInvalidTarget},
	} {
		if got := exchangeToken(t, startExchange(t, issuer, row.secret), row.token, row.scope); got.Status != row.status || got.Error != row.code {
			t.Errorf("%s: got %+v, want %d %s", name, got, row.status, row.code)
		}
	}
}
