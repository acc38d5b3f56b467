package translate_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// externalGateway has a server with a certificate of an SDS server, and one that also verifies clients with it.
var externalGateway = strings.NewReplacer("credentialName: one}}", "credentialName: 'sds://one'}}").Replace(secretGateway)

// expectCertificate waits until the gateway presents a certificate of the SDS server for a secret.
func (w *testEnv) expectCertificate(sni, secret string, certs ...tls.Certificate) {
	w.t.Helper()
	eventually(w.t, func() string {
		c, err := w.dialTLS(sni, certs...)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		if got := c.ConnectionState().PeerCertificates[0].URIs; len(got) != 1 || got[0].String() != "spiffe://external/"+secret {
			return fmt.Sprintf("%s presents %v", sni, got)
		}
		return ""
	})
}

func (w *testEnv) serveExternalSecrets(network, address string) {
	w.t.Helper()
	serveGRPCAt(w.t, network, w.expandNetwork(address), func(g *grpc.Server) {
		secretv3.RegisterSecretDiscoveryServiceServer(g, &secrets{ca: w.plane.ca, id: "spiffe://external/", named: true})
	})
}

// TestCertificatesOfAnSDSServer: on the socket of the gateway, at an extension provider, or, without a server, in a
// Secret.
func TestCertificatesOfAnSDSServer(t *testing.T) {
	const ingress = "router ingress.edge NET.1.1 istio=ingress"
	check := func(w *testEnv, secret string) {
		w.expectCertificate("shop.example.com", secret)
		w.expect(200, "there", func() httpResult { return w.https("shop.example.com", nil) })
		w.expect(0, "", func() httpResult { return w.httpsAs("mutual.example.com", "mutual.example.com", nil) })
		client := w.clientCertificate(5)
		w.expect(200, "there", func() httpResult {
			return w.httpsAs("mutual.example.com", "mutual.example.com", []tls.Certificate{client})
		})
	}
	forEachEnvoyVersion(t, 175003, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, externalGateway)
		dir, err := os.MkdirTemp("", "sds") // short enough for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		w.plane.envoyDir = dir
		socket := filepath.Join(dir, "var/run/secrets/credential-uds/socket")
		if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
			t.Fatal(err)
		}
		w.serveExternalSecrets("unix", socket)
		w.proxy(ingress+" credential=true", "edge/ingress")
		check(w, "sds:%2F%2Fone")
	})
	forEachEnvoyVersion(t, 175005, func(t *testing.T, version string, network int) {
		mesh := &meshconfig.MeshConfig{ExtensionProviders: []*meshconfig.MeshConfig_ExtensionProvider{{
			Name: "sds", Provider: &meshconfig.MeshConfig_ExtensionProvider_Sds{Sds: &meshconfig.MeshConfig_ExtensionProvider_SDSProvider{Name: "sds", Service: "secrets.example", Port: 15010}},
		}}}
		w := newTestEnvWithConfig(t, mesh, version, network, externalGateway, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: secrets, namespace: edge}
spec: {hosts: [secrets.example], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 15010, name: grpc, protocol: GRPC, targetPort: 9443}], endpoints: [{address: NET.9.1}]}
`)
		w.serveExternalSecrets("tcp", "NET.9.1:9443")
		w.proxy(ingress, "edge/ingress")
		check(w, "one")
	})
	forEachEnvoyVersion(t, 175007, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, externalGateway)
		w.proxy(ingress, "edge/ingress")
		w.change(w.secretOf("one", 6, "  ca.crt: |\n"+indent(indent(string(w.plane.ca.pem)))))
		eventually(t, func() string {
			if serial, err := w.handshake("shop.example.com"); err != nil || serial != "6" {
				return fmt.Sprintf("%s, %v", serial, err)
			}
			return ""
		})
	})
}
