package istio

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// TestCertificateReplacesTheToken: with OUTPUT_CERTS and PROV_CERT, as on machines without a cluster's tokens, an
// agent that is started again is known to istiod by the certificate that it had from it.
func TestCertificateReplacesTheToken(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict, "OUTPUT_CERTS=./certs")
	testenv.Eventually(t, "the certificate is written", func() error {
		var err error
		for _, name := range []string{"cert-chain.pem", "key.pem", "root-cert.pem"} {
			_, missing := os.Stat(filepath.Join(m.web.dir, "certs", name))
			err = errors.Join(err, missing)
		}
		return err
	})
	first := m.web.certificates(t)["default"]
	if err := m.web.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-m.web.ended
	if err := os.Remove(filepath.Join(m.web.dir, tokenPath)); err != nil {
		t.Fatal(err)
	}
	m.web.start(t, "OUTPUT_CERTS=./certs", "PROV_CERT=./certs")
	m.web.waitReady(t, m.node)
	m.web.waitAnswer(t, http.StatusOK, "URI=spiffe://cluster.local/ns/books/sa/web")
	testenv.Eventually(t, "istiod has signed another", func() error { // until then the first one is served
		if second := m.web.certificates(t)["default"]; second.Serial == first.Serial || second.SPIFFEID != first.SPIFFEID {
			return fmt.Errorf("after %+v it is %+v", first, second)
		}
		return nil
	})
}

// TestRootsOfTheMeshReachThePods: in a mesh with several roots, the pods receive those that istiod sends in addition to
// its own.
func TestRootsOfTheMeshReachThePods(t *testing.T) {
	t.Parallel()
	other := testpki.New(t, "the root of another cluster")
	m := &mesh{node: newNode(t, "10.157.0.1")}
	m.plane = newIstiod(t, m.node, cluster(), strict, "ISTIO_MULTIROOT_MESH=true")
	m.plane.write(t, "mesh.yaml", m.plane.mesh+"caCertificates:\n- pem: |\n    "+strings.ReplaceAll(strings.TrimSpace(string(other.PEM())), "\n", "\n    ")+"\n")
	web := newPod(t, m.plane, "web", webAddress).start(t, "PROXY_CONFIG_XDS_AGENT=true")
	web.waitReady(t, m.node)
	testenv.Eventually(t, "Envoy trusts both roots", func() error {
		body, err := web.get("http://127.0.0.1:15000/certs")
		if err == nil && !strings.Contains(string(body), strings.ToLower(other.Cert.SerialNumber.Text(16))) {
			err = fmt.Errorf("only %s", body)
		}
		return err
	})
}

// certificate is the agent's report of a certificate that it serves.
type certificate struct{ Name, SPIFFEID, Serial, Source string }

func (p *pod) certificates(t testing.TB) map[string]certificate {
	t.Helper()
	var list []certificate
	body, err := p.get("http://127.0.0.1:15020/debug/certz")
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	byName := map[string]certificate{}
	for _, c := range list {
		byName[c.Name] = c
	}
	return byName
}
