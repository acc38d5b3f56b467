package peers

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The sidecars call over a new connection each time: connections that exist when a certificate is denied stay.
const deniedMesh = `
apiVersion: v1
kind: Service
metadata: {name: greeter, namespace: default}
spec: {selector: {app: greeter}, ports: [{name: grpc, port: 7000, targetPort: 7001}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: greeter, namespace: default}
spec: {address: NET.11, labels: {app: greeter}, serviceAccount: greeter}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: greeter, namespace: default}
spec: {host: greeter.default.svc.cluster.local, trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

// TestSidecarRefusesADeniedCertificate: also of a peer that has no connection to the control plane any more, and across a
// rotation of the root.
func TestSidecarRefusesADeniedCertificate(t *testing.T) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) { t.Parallel(); refuseDeniedCertificate(t, version, fmt.Sprintf("127.194.%d", 4+i)) })
	}
}

func refuseDeniedCertificate(t *testing.T, version, network string) {
	m := &grpcMesh{t: t, network: network, config: t.TempDir(), state: t.TempDir(), output: &testenv.Buffer{}}
	list := filepath.Join(t.TempDir(), "deny.yaml")
	deny := func(text string) {
		if err := errors.Join(os.WriteFile(list+"~", []byte(text), 0o600), os.Rename(list+"~", list)); err != nil {
			t.Fatal(err)
		}
	}
	deny("")
	m.args = []string{"--deny-list", list}
	m.write("mesh.yaml", deniedMesh)
	m.startPlane()
	sidecar := func(address, app int, account string) *proxyless {
		return m.workload(m.address(address), "default/"+account, fmt.Sprintf("app=%q\n", account), "DISABLE_ENVOY=false",
			"ENVOY_PATH="+testenv.EnvoyOf(t, version), "ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_APP_ADDRESS="+m.address(app), "PROXY_CONFIG_XDS_AGENT=true") // roots are sent when they change
	}
	sidecar(11, 12, "greeter")
	listen(t, m.address(12)+":7001")
	bad, good := sidecar(21, 22, "bad"), sidecar(31, 32, "good")
	const greeter = "greeter.default.svc.cluster.local:7000"
	both := func() error { return errors.Join(bad.checkCall(greeter), good.checkCall(greeter)) }
	stolen := bad.copyCertificate(t)
	refused := func() error {
		if bad.checkCall(greeter) == nil {
			return errors.New("it is accepted")
		}
		// Without the client's proxy, which knows of the denial too, and with the ticket of an earlier session.
		if err := stolen(m.address(11) + ":7001"); err == nil || !strings.Contains(err.Error(), "revoked certificate") {
			return fmt.Errorf("the stolen certificate: %w", err)
		}
		return nil
	}
	testenv.Eventually(t, "both clients are accepted", both)
	if err := stolen(m.address(11) + ":7001"); err != nil {
		t.Fatalf("the stolen certificate, before it is denied: %v", err)
	}

	start := time.Now()
	deny(fmt.Sprintf("serials: [%s]\n", bad.serial(t)))
	testenv.Eventually(t, "the denied certificate is refused", refused)
	t.Logf("refused %s after the edit", time.Since(start).Round(time.Millisecond))
	if err := good.checkCall(greeter); err != nil {
		t.Errorf("the other client: %v", err)
	}

	// While a rotation announces a root, the trust bundle has two, and each needs a list.
	m.rotate(t)
	testenv.Eventually(t, "there are lists of both roots", func() error { return m.checkListCount(2) })
	testenv.Eventually(t, "only the denied certificate is refused", func() error { return errors.Join(refused(), good.checkCall(greeter)) })
	m.rotate(t)
	fresh := sidecar(41, 42, "fresh") // its certificate is of the new root
	testenv.Eventually(t, "a client with a certificate of the new root is accepted", func() error { return fresh.checkCall(greeter) })
	testenv.Eventually(t, "still only the denied certificate is refused", func() error { return errors.Join(refused(), good.checkCall(greeter)) })

	deny("")
	testenv.Eventually(t, "all clients are accepted again", both)
}

// copyCertificate returns a function that opens a connection with the workload's certificate and key as they are now.
func (p *proxyless) copyCertificate(t *testing.T) func(address string) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(p.dir, "certs/cert-chain.pem"), filepath.Join(p.dir, "certs/key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{
		Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"istio", "h2"}, ServerName: "greeter",
		ClientSessionCache: tls.NewLRUClientSessionCache(10),
	}
	return func(address string) error {
		conn, err := tls.Dial("tcp", address, config)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
			return err
		}
		// Envoy verifies after the client's handshake. Its first frame of HTTP/2 is sent when it has accepted the certificate.
		_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // on an error, Read returns the reason
		_, err = conn.Read(make([]byte, 9))
		return err
	}
}

// serial returns the serial number of the workload's certificate.
func (p *proxyless) serial(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "certs/cert-chain.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert.SerialNumber.Text(16)
}

// checkListCount returns an error unless the file of revocation lists has so many.
func (m *grpcMesh) checkListCount(want int) error {
	text, err := os.ReadFile(filepath.Join(m.state, "ca-crl.pem"))
	if err != nil {
		return err
	}
	lists := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		lists++
	}
	if lists != want {
		return fmt.Errorf("there are %d lists", lists)
	}
	return nil
}

// rotate executes the next step of the rotation of roots.
func (m *grpcMesh) rotate(t *testing.T) {
	t.Helper()
	command := exec.Command(testenv.Bin(t, "pilotfish"), "ca", "rotate", "--force", "--state-dir", m.state)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
