package translate_test

import (
	"bufio"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestSecretsRequireAuthenticatedGateway that a Gateway with the Secret selects.
func TestSecretsRequireAuthenticatedGateway(t *testing.T) {
	m := readTopic(t, "gateway-secrets").mesh
	all := []string{"kubernetes://both", "kubernetes://pair", "kubernetes://both-cacert", "kubernetes://pair-cacert", "kubernetes://password", "both"}
	for description, want := range map[string]int{
		"router ingress.istio-system 127.203.73.1 istio=ingressgateway PROVEN=yes":  4,
		"router ingress.istio-system 127.203.73.1 istio=ingressgateway":             0,
		"router ingress.elsewhere 127.203.73.1 istio=ingressgateway PROVEN=yes":     0,
		"router ingress.istio-system 127.203.73.1 istio=other PROVEN=yes":           0,
		"sidecar ingress.istio-system 127.203.73.1 istio=ingressgateway PROVEN=yes": 0,
	} {
		for _, names := range [][]string{nil, all} {
			got, err := generate(m.snap, proxy(t, description), xds.SecretType, names)
			if err != nil || len(got) != want {
				t.Errorf("%s receives %d secrets, %v", description, len(got), err)
			}
		}
	}
}

// TestSecretProblemsDoNotContainKeys also checks that a printed Secret does not contain keys.
func TestSecretProblemsDoNotContainKeys(t *testing.T) {
	const marked = "bWFya2VkLWFzLXNlY3JldA" // no padding: not base64
	for _, document := range []string{
		"data: {tls.crt: %s, tls.key: %[1]s}", "data: %s", "data: [%s]", "data:\n  tls.key: %s\n tls.crt: x", "stringData: {tls.crt: %s}",
		"stringData: {tls.crt: %s, tls.key: '-----BEGIN %[1]s'}", "data: {tls.key: [%s]}", "type: %s\nspec: %[1]s", "data: {tls.key: \"%s}",
		"data: {.dockerconfigjson: %s}", "stringData: {.dockerconfigjson: '{\"auths\": \"%s\"}'}", "stringData: {.dockerconfigjson: '{\"auths\": {\"a\": {\"auth\": \"%s\"}}}'}",
	} {
		text := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n" + fmt.Sprintf(document, marked)
		resources, problems := config.Parse("s.yaml", []byte(text))
		if len(problems) == 0 {
			t.Errorf("%s: no problem is reported", document)
		}
		for _, p := range problems {
			if strings.Contains(p.String(), marked) {
				t.Errorf("%s: %s", document, p)
			}
		}
		if len(resources) > 0 {
			t.Errorf("%s: accepted", document)
		}
	}
	for _, kind := range []string{"secret", "Scret"} {
		text := fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {name: s}\ndata:\n  tls.key: %s\n %[2]s\n", kind, marked)
		if _, problems := config.Parse("s.yaml", []byte(text)); len(problems) == 0 || strings.Contains(fmt.Sprint(problems), marked) {
			t.Errorf("of kind %s: %v", kind, problems)
		}
	}
	resources := parse(t, withCertificates("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {tls.crt: $CERTIFICATE, tls.key: $KEY}"))
	if text := fmt.Sprintf("%v %+v %#v %s", resources[0].Spec, resources[0].Spec, resources[0].Spec, resources[0].Spec); strings.Contains(text, "45 45 45") || strings.Contains(text, "BEGIN") {
		t.Errorf("the printed Secret contains its key: %s", text)
	}
}

// TestInvalidSecretsAreRefused: weak keys, and certificate chains with other data.
func TestInvalidSecretsAreRefused(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})
	for want, c := range map[string]struct {
		key  crypto.Signer
		more []byte
	}{
		"1024 bits": {weak, nil}, "curve P-224": {small, nil}, "tls.crt: certificate 2 cannot be read": {good, broken},
		"tls.crt: 1 of its 2 PEM blocks": {good, broken[:40]}, "": {good, nil},
	} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, c.key.Public(), c.key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), c.more...)
		text := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {tls.crt: %s, tls.key: %s}\n", base64.StdEncoding.EncodeToString(chain),
			base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
		resources, problems := config.Parse("s.yaml", []byte(text))
		if reported := fmt.Sprint(problems); (len(resources) == 1) != (want == "") || !strings.Contains(reported, want) {
			t.Errorf("%q: %d accepted, %s", want, len(resources), reported)
		}
	}
}

// secretOf returns a Secret with a certificate for the gateway and additional fields.
func (w *testEnv) secretOf(name string, serial int64, parts string) string {
	_, cert, key := w.plane.ca.sign(&x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"shop.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, w.plane.ca.cert, w.plane.ca.key)
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: edge}\nstringData:\n  tls.crt: |\n%s\n  tls.key: |\n%s\n%s",
		name, indent(indent(string(cert))), indent(indent(string(key))), parts)
}

func (w *testEnv) handshake(sni string, certs ...tls.Certificate) (serial string, err error) {
	c, err := w.dialTLS(sni, certs...)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

func (w *testEnv) dialTLS(sni string, certs ...tls.Certificate) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	return tls.DialWithDialer(d, "tcp", w.expandNetwork("NET.1.1:8443"), &tls.Config{InsecureSkipVerify: true, ServerName: sni, Certificates: certs})
}

const secretGateway = `
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec: {selector: {istio: ingress}, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [shop.example.com], tls: {mode: SIMPLE, credentialName: one}}
  - {port: {number: 443, name: mutual, protocol: HTTPS}, hosts: [mutual.example.com], tls: {mode: MUTUAL, credentialName: one}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: back}
spec: {hosts: ["*"], gateways: [edge/edge], http: [{directResponse: {status: 200, body: {string: there}}}]}
`

// TestGatewaySecretRotationRetainsConnections, also with revocation lists.
func TestGatewaySecretRotationRetainsConnections(t *testing.T) {
	forEachEnvoyVersion(t, 175, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, secretGateway)
		w.proxy("router ingress.edge NET.1.1 istio=ingress", "edge/ingress")
		if _, err := w.handshake("shop.example.com"); err == nil {
			t.Error("the gateway serves TLS without the Secret")
		}
		authorities := "  ca.crt: |\n" + indent(indent(string(w.plane.ca.pem)))
		w.change(w.secretOf("one", 1, authorities))
		w.expect(200, "there", func() httpResult { return w.https("shop.example.com", nil) })

		open, err := w.dialTLS("shop.example.com")
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		ask := func() error {
			_ = open.SetDeadline(time.Now().Add(5 * time.Second))
			fmt.Fprint(open, "GET / HTTP/1.1\r\nHost: shop.example.com\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(open), nil)
			if err == nil && (resp.StatusCode != 200 || resp.Close) {
				err = fmt.Errorf("status %d, connection closes: %t", resp.StatusCode, resp.Close)
			}
			return err
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		w.change(w.secretOf("one", 2, authorities))
		eventually(t, func() string {
			if serial, err := w.handshake("shop.example.com"); err != nil || serial != "2" {
				return fmt.Sprintf("the gateway presents the certificate %s, %v", serial, err)
			}
			return ""
		})
		if err := ask(); err != nil {
			t.Errorf("request on the connection from before the change: %v", err)
		}

		client := w.clientCertificate(77)
		w.expect(0, "", func() httpResult { return w.httpsAs("mutual.example.com", "mutual.example.com", nil) })
		w.expect(200, "there", func() httpResult {
			return w.httpsAs("mutual.example.com", "mutual.example.com", []tls.Certificate{client})
		})
		w.change(w.secretOf("one", 3, authorities+"\n  ca.crl: |\n"+indent(indent(string(w.revoking(77))))))
		w.expect(0, "", func() httpResult {
			return w.httpsAs("mutual.example.com", "mutual.example.com", []tls.Certificate{client})
		})
		other := w.clientCertificate(78)
		w.expect(200, "there", func() httpResult {
			return w.httpsAs("mutual.example.com", "mutual.example.com", []tls.Certificate{other})
		})

		w.remove(config.Key{Kind: config.Secret, Namespace: "edge", Name: "one"})
		w.expect(0, "", func() httpResult { return w.https("shop.example.com", nil) })
	})
}

func (w *testEnv) clientCertificate(serial int64) tls.Certificate {
	_, cert, key := w.plane.ca.sign(&x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "client"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, w.plane.ca.cert, w.plane.ca.key)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		w.t.Fatal(err)
	}
	return pair
}

func (w *testEnv) revoking(serial int64) []byte {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(serial), RevocationTime: time.Now().Add(-time.Minute)}},
	}, w.plane.ca.cert, w.plane.ca.key)
	if err != nil {
		w.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}
