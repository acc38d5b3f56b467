package analysis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// newSecret returns a Secret with a certificate that is valid between two times.
func newSecret(t *testing.T, namespace string, from, to time.Time) *config.Resource {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &config.Resource{
		Key:  config.Key{Kind: config.Secret, Namespace: namespace, Name: "edge"},
		Spec: &config.SecretSpec{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: []byte("a key")},
	}
}

func TestInvalidAndMissingCertificatesAreReported(t *testing.T) {
	const hour = time.Hour
	now := time.Now()
	gateway := traffic("Gateway", "tls", "{selector: {istio: edge}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: edge}}]}")
	proxy := document("networking.istio.io/v1", "WorkloadEntry", "edge-1", "shop", "{address: 10.0.0.9, labels: {istio: edge}}")
	for name, test := range map[string]struct {
		namespace string
		from, to  time.Time
		want      string
	}{
		"good":               {"shop", now.Add(-hour), now.Add(hour), ""},
		"ended":              {"shop", now.Add(-2 * hour), now.Add(-hour), "the certificate expired at"},
		"not yet":            {"shop", now.Add(hour), now.Add(2 * hour), "is not valid before"},
		"in another's place": {"other", now.Add(-hour), now.Add(hour), "not in the namespace of the proxy's workload, which is shop"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, gateway, proxy)
			secret := newSecret(t, test.namespace, test.from, test.to)
			m.store.Put(secret)
			m.rebuild([]config.Key{secret.Key})
			got := problems(m)
			if test.want == "" && strings.Contains(got, "certificate") || !strings.Contains(got, test.want) {
				t.Errorf("problems are %q, want %q", got, test.want)
			}
			if strings.Contains(got, "a key") {
				t.Errorf("the problems contain the content of the Secret: %s", got)
			}
		})
	}
}

func TestRuleWhoseSecretNoGatewayMayUseIsReported(t *testing.T) {
	now := time.Now()
	spec := newSecret(t, "shop", now.Add(-time.Hour), now.Add(time.Hour)).Spec.(*config.SecretSpec)
	for name, c := range map[string]struct {
		account, annotations string
		want                 bool
	}{
		"no account":       {want: true},
		"a known account":  {account: "edge"},
		"a listed account": {annotations: config.AccountsAnnotation + ": edge"},
	} {
		file := filepath.Join(t.TempDir(), "a.yaml")
		text := fmt.Sprintf(`
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: plain, namespace: shop}, spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: out, namespace: shop}, spec: {host: a.example, trafficPolicy: {tls: {mode: SIMPLE, credentialName: partner}}}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: edge, namespace: shop}, spec: {address: 10.0.0.9, labels: {istio: edge}, serviceAccount: %q}}
---
{apiVersion: v1, kind: Secret, metadata: {name: partner, namespace: shop, annotations: {%s}}, stringData: {ca.crt: %q}}
`, c.account, c.annotations, spec.Certificate)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := analysis.Analyze(analysis.Config{Paths: []string{file}})
		if err != nil {
			t.Fatal(err)
		}
		reported := slices.ContainsFunc(report.Findings, func(f analysis.Finding) bool { return f.Code == config.GatewayAccountUnknown })
		if reported != c.want {
			t.Errorf("%s: the findings are %v", name, report.Findings)
		}
	}
}
