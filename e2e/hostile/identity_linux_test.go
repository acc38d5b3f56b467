package hostile

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// identityAttacks are attempts to get, forge or prolong an identity.
var identityAttacks = []attack{
	{
		name: "a forged token proves a service account", position: unauthenticated,
		limit: "no certificate and no configuration", service: "a caller with a true token gets a certificate", run: forgeTokens,
	},
	{
		name: "a certificate request names another identity", position: workload,
		limit: "the request is refused, or the certificate has the caller's own name only", service: "the caller gets its own certificate", run: requestForeignNames,
	},
	{
		name: "a certificate of another authority proves a service account", position: unauthenticated,
		limit: "no certificate and no configuration", service: "a certificate of the mesh proves its account", run: presentForeignCertificates,
	},
	{
		name: "a proxy claims the node identity of another workload", position: workload,
		limit: "the stream is refused", service: "the proxy gets its own configuration", run: claimForeignNode,
	},
	{
		name: "a stolen certificate is requested for 90 days", position: workload,
		limit: "certificates end within 24 h", service: "the caller gets a certificate for 24 h", run: requestLongLife,
	},
	{
		name: "a stolen identity renews its certificate and reads configuration after it is denied", position: workload,
		limit: "its streams end within a second, and it gets nothing more", service: "other accounts and certificates are served", run: useDeniedIdentity,
	},
	{
		name: "a malformed deny list lets denied identities in", position: workload,
		limit: "the last valid list stays in force, and the log names the error", service: "other accounts are served", run: outliveDenyList,
	},
}

// caller is a key pair with its certificate.
type caller struct {
	cert *x509.Certificate
	tls  tls.Certificate
}

// certify requests a certificate; names are additional SPIFFE IDs or DNS names of the request.
func certify(ctx context.Context, t *testing.T, conn *grpc.ClientConn, life time.Duration, names ...string) (*caller, error) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{}
	for _, name := range names {
		if id, err := url.Parse(name); err == nil && id.Scheme != "" {
			template.URIs = append(template.URIs, id)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	response, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
		&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: int64(life / time.Second)})
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(response.GetCertChain()[0]))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return &caller{cert, tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, nil
}

// mustCertify requests a certificate as a legitimate caller with a token.
func (p *plane) mustCertify(t *testing.T, namespace, account string) *caller {
	t.Helper()
	c, err := certify(withToken(t, p.token(t, namespace, account)), t, p.dial(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.cert.URIs[0].String(), "spiffe://cluster.local/ns/"+namespace+"/sa/"+account; got != want {
		t.Fatalf("the certificate is for %s, want %s", got, want)
	}
	return c
}

// sidecar is a node of a namespace.
func sidecar(namespace string) node { return node{"sidecar", "192.0.2.7", namespace, nil} }

// wantRefused checks that neither a certificate nor configuration is served.
func (p *plane) wantRefused(ctx context.Context, t *testing.T, what string, certificates ...tls.Certificate) {
	t.Helper()
	if c, err := certify(ctx, t, p.dial(t, certificates...), 0); err == nil {
		t.Errorf("%s: got a certificate for %s", what, c.cert.URIs[0])
	}
	if _, _, err := sidecar("shop").stream(ctx, t, p.dial(t, certificates...), clusterType); err == nil {
		t.Errorf("%s: got configuration", what)
	}
}

// signToken signs claims with an algorithm of JWTs: ES256, HS256 keyed with a public key would be another attack, or none.
func signToken(t *testing.T, header, claims map[string]any, key *ecdsa.PrivateKey) string {
	t.Helper()
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := encode(header) + "." + encode(claims)
	if key == nil {
		return signed + "."
	}
	hash := crypto.SHA256.New()
	hash.Write([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, hash.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func forgeTokens(t *testing.T) {
	p := startPlane(t, groups)
	text, err := os.ReadFile(p.path("state/authority/token-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if parsed, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
			t.Fatal(err)
		}
	}
	own := parsed.(*ecdsa.PrivateKey)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claims := func(changed map[string]any) map[string]any {
		all := map[string]any{
			"iss": "spiffe://cluster.local", "sub": "system:serviceaccount:shop:payments", "aud": []string{"istio-ca"},
			"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		}
		for name, value := range changed {
			all[name] = value
			if value == nil {
				delete(all, name)
			}
		}
		return all
	}
	es256, none := map[string]any{"alg": "ES256", "typ": "JWT"}, map[string]any{"alg": "none", "typ": "JWT"}
	for name, token := range map[string]string{
		"algorithm none":           signToken(t, none, claims(nil), nil),
		"algorithm None, signed":   signToken(t, map[string]any{"alg": "None"}, claims(nil), own),
		"another key":              signToken(t, es256, claims(nil), other),
		"another key, inline":      signToken(t, map[string]any{"alg": "ES256", "jwk": map[string]any{"kty": "EC", "crv": "P-256"}}, claims(nil), other),
		"another issuer":           signToken(t, es256, claims(map[string]any{"iss": "https://elsewhere.example"}), own),
		"another trust domain":     signToken(t, es256, claims(map[string]any{"iss": "spiffe://elsewhere.example"}), own),
		"another audience":         signToken(t, es256, claims(map[string]any{"aud": []string{"orders.example"}}), own),
		"no audience":              signToken(t, es256, claims(map[string]any{"aud": nil}), own),
		"expired":                  signToken(t, es256, claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), own),
		"without end":              signToken(t, es256, claims(map[string]any{"exp": nil}), own),
		"not begun":                signToken(t, es256, claims(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), own),
		"a subject without prefix": signToken(t, es256, claims(map[string]any{"sub": "shop:payments"}), own),
		"a subject with a path":    signToken(t, es256, claims(map[string]any{"sub": "system:serviceaccount:shop/sa/x:payments"}), own),
		"no token":                 "",
		"no JWT":                   "payments",
		"one of 10 KiB":            strings.Repeat("a", 10<<10),
	} {
		p.wantRefused(withToken(t, token), t, name)
	}
	c, err := certify(withToken(t, signToken(t, es256, claims(nil), own)), t, p.dial(t), 0)
	if err != nil || c.cert.URIs[0].Path != "/ns/shop/sa/payments" {
		t.Errorf("a true token got %v, %v", c, err)
	}
}

func requestForeignNames(t *testing.T) {
	p := startPlane(t, groups)
	ctx := withToken(t, p.token(t, "shop", "payments"))
	for _, name := range []string{
		"spiffe://cluster.local/ns/shop/sa/crawler", "spiffe://cluster.local/ns/other/sa/payments", "spiffe://elsewhere.example/ns/shop/sa/payments",
		"istiod.istio-system.svc", "localhost",
	} {
		if c, err := certify(ctx, t, p.dial(t), 0, name); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a request for %s: %v, %v", name, c, err)
		}
	}
	p.mustCertify(t, "shop", "payments")
}

func presentForeignCertificates(t *testing.T) {
	p := startPlane(t, groups)
	cert, key := testpki.New(t, "cluster.local").Workload(t, "spiffe://cluster.local/ns/shop/sa/payments")
	foreign, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	// One that a workload's own certificate signs: it is no authority's.
	own := p.mustCertify(t, "shop", "payments")
	id, _ := url.Parse("spiffe://cluster.local/ns/shop/sa/crawler")
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, own.cert, leaf.Public(), own.tls.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	p.wantRefused(withToken(t, ""), t, "another authority of the same name", foreign)
	p.wantRefused(withToken(t, ""), t, "a workload's certificate as authority", tls.Certificate{Certificate: [][]byte{der, own.cert.Raw}, PrivateKey: leaf})
	if _, err := certify(withToken(t, ""), t, p.dial(t, own.tls), 0); err != nil {
		t.Errorf("a certificate of the mesh is refused: %v", err)
	}
}

func claimForeignNode(t *testing.T) {
	p := startPlane(t, groups)
	ctx := withToken(t, p.token(t, "shop", "payments"))
	for name, claim := range map[string]node{
		"another namespace":       sidecar("other"),
		"another service account": {"sidecar", "192.0.2.7", "shop", map[string]any{"SERVICE_ACCOUNT": "crawler"}},
		"two namespaces":          {"sidecar", "192.0.2.7", "shop", map[string]any{"NAMESPACE": "other"}},
	} {
		if _, _, err := claim.stream(ctx, t, p.dial(t), clusterType); err == nil {
			t.Errorf("a node that claims %s gets configuration", name)
		}
	}
	if _, _, err := sidecar("shop").stream(ctx, t, p.dial(t), clusterType); err != nil {
		t.Errorf("the proxy's own node is refused: %v", err)
	}
}

func requestLongLife(t *testing.T) {
	p := startPlane(t, groups)
	stolen := p.mustCertify(t, "shop", "payments")
	for name, life := range map[string]time.Duration{"90 days": 90 * 24 * time.Hour, "100 years": 100 * 365 * 24 * time.Hour, "the default": 0} {
		c, err := certify(withToken(t, ""), t, p.dial(t, stolen.tls), life)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(c.cert.NotAfter); left > 24*time.Hour+time.Minute {
			t.Errorf("a request for %s got a certificate for %s", name, left)
		}
	}
	if !strings.Contains(p.output.String(), "max-workload-cert-ttl") {
		t.Error("the log does not report that a life was cut")
	}
}
