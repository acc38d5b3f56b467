package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
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
	name:     "a tenant's DestinationRule leads through a shared gateway to the control plane, with the files of the gateway's certificate",
	position: outsider,
	limit:    "503, and a finding with the field and the remedy",
	service:  "a rule of the gateway's namespace uses the files",
	run:      attackWithCertificateFiles,
}, {
	name:     "an outsider reads the control plane's debug pages through a gateway of root on its machine",
	position: outsider,
	limit:    "401: no configuration of another namespace",
	service:  "the gateway has its certificate and configuration",
	run:      attackDebugPages,
}, {
	name:     "a tenant's endpoints lead proxies of root to a monitoring port that a flag changed",
	position: tenant,
	limit:    "no connection: 503, by DNS name through a gateway and by address through a sidecar, and a finding",
	service:  "the gateway serves names of other machines, and the sidecar the application",
	run:      attackChangedPort,
}}

func attackControlPlane(t *testing.T) {
	e := startEdge(t, func(string) string { return planeDocuments("mode: ISTIO_MUTUAL") })
	e.requireNoCertificate(t, "upstream connect error")
	// The access log has the reason. The control plane refuses the handshake by its ALPN protocols with this alert.
	awaitLog(t, e.proxy, "CreateCertificate", "TLSV1_ALERT_INTERNAL_ERROR", edgePlane+":15012")
}

// attackWithCertificateFiles uses the files into which the gateway's agent writes its certificate.
func attackWithCertificateFiles(t *testing.T) {
	var tls string
	e := startEdgePlane(t, func(dir string) string {
		tls = fmt.Sprintf("mode: MUTUAL, clientCertificate: %[1]s/cert-chain.pem, privateKey: %[1]s/key.pem, caCertificates: %[1]s/root-cert.pem, sni: istiod.istio-system.svc", dir+"/certs")
		return planeDocuments(tls)
	})
	e.gateway = e.startProxy("router", "gw", "edge", edgeGateway, "OUTPUT_CERTS="+e.path("certs"))
	e.requireNoCertificate(t, "no healthy upstream")
	testenv.Eventually(t, "the log has a finding of the rule", func() error {
		for line := range strings.Lines(e.log.String()) {
			if containsAll(line, []string{"PF0108", "DestinationRule tenant/plane: spec.trafficPolicy.tls.clientCertificate", "move the rule"}) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	// The owner of the gateway may name its files: the same rule in its namespace leads to the control plane.
	e.write("config/tenant.yaml", strings.Replace(planeDocuments(tls), "metadata: {name: plane, namespace: tenant}\nspec: {host", "metadata: {name: plane, namespace: edge}\nspec: {host", 1))
	testenv.Eventually(t, "the gateway uses the files for its own namespace", func() error { return e.requestCertificate(t) })
}

// planeDocuments lead a tenant's host to the control plane, with TLS settings.
func planeDocuments(tls string) string {
	return tenantEntry("plane", "GRPC", "STATIC", "{address: "+edgePlane+", ports: {port: 15012}}") + `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: plane, namespace: tenant}
spec: {host: plane.tenant.internal, exportTo: ["*"], trafficPolicy: {tls: {` + tls + `}}}
`
}

// requireNoCertificate requests a certificate through the gateway until the gateway's Envoy fails for a reason. It fails the
// test if there is one.
func (e *sharedEdge) requireNoCertificate(t *testing.T, reason string) {
	t.Helper()
	testenv.Eventually(t, "the gateway cannot connect to the control plane", func() error {
		err := e.requestCertificate(t)
		if err == nil {
			t.Fatal("an outsider has a certificate of the gateway")
		}
		if !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("want the reason %q: %w", reason, err)
		}
		return nil
	})
}

// requestCertificate requests a certificate for an outsider's key through the gateway.
func (e *sharedEdge) requestCertificate(t *testing.T) error {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = securityv1.NewIstioCertificateServiceClient(e.grpc(t, "plane.tenant.example")).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{
		Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), ValidityDuration: 3600,
	})
	return err
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

// changedPort is the control plane's monitoring port. Its debug pages need no credentials from root over loopback.
const changedPort = 18014

func attackChangedPort(t *testing.T) {
	start := func(t *testing.T, documents string, hosts ...string) *sharedEdge {
		e := newEdge(t, func(string) string { return documents }, hosts...)
		e.plane = "127.0.0.1"
		e.startPlane("--monitoring-port", fmt.Sprint(changedPort))
		return e
	}
	t.Run("through a gateway by name", func(t *testing.T) {
		pages := strings.Replace(namedEntry("pages", "pages."+loopbackName, "DNS", changedPort, ""), "http: [{", "http: [{rewrite: {authority: localhost}, ", 1)
		e := start(t, pages+namedEntry("shop", shopName, "DNS", 8080, ""), "127.0.0.1 pages."+loopbackName, edgeShop+" "+shopName)
		e.serve("tcp", edgeShop+":8080", "the shop")
		e.gateway = e.startProxy("router", "gw", "edge", edgeGateway)
		testenv.Eventually(t, "the shop is served", func() error {
			if code, body := e.request(t, http.MethodGet, "https://shop.tenant.example/"); code != http.StatusOK || body != "the shop" {
				return fmt.Errorf("%d %q", code, body)
			}
			return nil
		})
		e.requireRefused(t, http.MethodGet, "pages", "/debug/configz")
		awaitLog(t, e.log, "PF0112", "ServiceEntry tenant/pages", fmt.Sprint(changedPort))
	})
	t.Run("through a sidecar by address", func(t *testing.T) {
		e := start(t, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: pod, namespace: tenant}
spec:
  workloadSelector: {labels: {app: tenant}}
  ingress:
  - {port: {number: 9001, protocol: HTTP, name: pages}, bind: %[1]s, captureMode: NONE, defaultEndpoint: '127.0.0.1:%[2]d'}
  - {port: {number: 9008, protocol: HTTP, name: application}, bind: %[1]s, captureMode: NONE, defaultEndpoint: '127.0.0.1:8080'}
`, edgePod, changedPort))
		e.serve("tcp", "127.0.0.1:8080", "the application")
		e.startProxy("sidecar", "pod", "tenant", edgePod)
		e.requireIngress(t, "application", "the application")
		e.requireIngressRefused(t, edgePod+":9001", "/debug/configz")
		awaitLog(t, e.log, "PF0112", "Sidecar tenant/pod", fmt.Sprint(changedPort))
	})
}
