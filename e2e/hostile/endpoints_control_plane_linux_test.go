package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// endpointControlPlaneAttacks are attempts to call the control plane with a proxy's certificate.
var endpointControlPlaneAttacks = []attack{{
	name:     "a tenant's endpoint leads through a shared gateway to the control plane, with the gateway's certificate",
	position: outsider,
	limit:    "the TLS handshake of the gateway's Envoy fails: no certificate of the gateway",
	service:  "the gateway's agent gets its certificate and configuration",
	run:      attackControlPlane,
}, {
	name:     "an outsider reads the control plane's debug pages through a gateway of root on its machine",
	position: outsider,
	limit:    "401: no configuration of another namespace",
	service:  "the gateway has its certificate and configuration",
	run:      attackDebugPages,
}}

func attackControlPlane(t *testing.T) {
	e := startEdge(t, func(string) string {
		return tenantEntry("plane", "GRPC", "STATIC", "{address: "+edgePlane+", ports: {port: 15012}}") + `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: plane, namespace: tenant}
spec: {host: plane.tenant.internal, exportTo: ["*"], trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
`
	})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	client := securityv1.NewIstioCertificateServiceClient(e.grpc(t, "plane.tenant.example"))
	testenv.Eventually(t, "the gateway cannot connect to the control plane", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		answer, err := client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{
			Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), ValidityDuration: 3600,
		})
		if err == nil {
			t.Fatalf("an outsider has a certificate of the gateway: %d certificates", len(answer.GetCertChain()))
		}
		if !strings.Contains(err.Error(), "upstream connect error") {
			return errors.Join(errors.New("the route is not ready yet"), err)
		}
		return nil
	})
}

func attackDebugPages(t *testing.T) {
	e := startEdge(t, func(string) string {
		entry := tenantEntry("pages", "HTTP", "STATIC", "{address: "+edgePlane+", ports: {port: 15014}}")
		return strings.Replace(entry, "http: [{route:", "http: [{rewrite: {authority: "+edgePlane+"}, route:", 1)
	})
	for _, page := range []string{"configz", "syncz"} {
		if code, body := e.request(t, "GET", "https://pages.tenant.example/debug/"+page); code != http.StatusUnauthorized {
			t.Errorf("/debug/%s is answered with %d: %.300s", page, code, body)
		}
	}
}
