package peers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestAgentStartsWhereNoneOfItsFilesAnswer: the identity, the token and the client certificate are on a file system
// that hangs. The agent answers requests, reports what it waits for, and ends on SIGTERM. It reads all files once the
// file system answers.
func TestAgentStartsWhereNoneOfItsFilesAnswer(t *testing.T) {
	t.Parallel()
	files := newFileSystem(t)
	plane := newControlPlane(t, "127.191.1.1:15012")
	plane.set(t, "1", "127.191.1.2:7001")
	p := &proxyless{dir: t.TempDir(), address: "127.191.1.4", output: &testenv.Buffer{}}
	cert, key := plane.pki.Workload(t, "spiffe://cluster.local/ns/books/sa/shop")
	writeFile(t, filepath.Join(p.dir, "var/run/secrets/istio/root-cert.pem"), plane.pki.PEM())
	for name, text := range map[string][]byte{
		"tokens/istio-token": []byte(token), "workload-spiffe-credentials/cert-chain.pem": cert, "workload-spiffe-credentials/key.pem": key,
		"workload-spiffe-credentials/root-cert.pem": plane.pki.PEM(),
		"prov/cert-chain.pem":                       cert, "prov/key.pem": key, "prov/root-cert.pem": plane.pki.PEM(),
	} {
		writeFile(t, filepath.Join(files.dir, name), text)
	}
	for _, name := range []string{"tokens", "workload-spiffe-credentials"} {
		if err := os.Symlink(filepath.Join(files.dir, name), filepath.Join(p.dir, "var/run/secrets", name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent said:\n%s", p.output)
		}
	})
	run := func() {
		p.agent = exec.Command(testenv.Bin(t, "pilotfish-agent"), "proxy", "sidecar")
		p.agent.Dir = p.dir
		p.agent.Env = []string{"HOME=" + p.dir, "DISABLE_ENVOY=true", "INSTANCE_IP=" + p.address, "PROXY_BIND_ADDRESS=" + p.address,
			"PROV_CERT=" + filepath.Join(files.dir, "prov"), "TERMINATION_GRACE_PERIOD=2s", "MINIMUM_DRAIN_DURATION=0s",
			"POD_NAME=shop", "POD_NAMESPACE=books", "SERVICE_ACCOUNT=shop", fmt.Sprintf("PROXY_CONFIG={discoveryAddress: %q}", plane.address)}
		p.agent.Stdout, p.agent.Stderr = p.output, p.output
		start(t, p.agent)
	}
	says := func() {
		t.Helper()
		testenv.Eventually(t, "the agent says what it waits for", func() error {
			if _, err := p.get("/healthz/ready"); err == nil || !strings.Contains(err.Error(), "the file system does not respond") {
				return fmt.Errorf("it says: %w", err)
			}
			return nil
		})
	}
	files.suspend(t)
	run()
	says()
	_ = p.agent.Process.Signal(syscall.SIGTERM)
	testenv.Eventually(t, "the agent ends", func() error {
		if p.agent.Process.Signal(syscall.Signal(0)) == nil {
			return errors.New("it runs")
		}
		return nil
	})
	run()
	says()
	files.resume(t)
	testenv.Eventually(t, "the agent is ready", func() error { _, err := p.get("/healthz/ready"); return err })
}
