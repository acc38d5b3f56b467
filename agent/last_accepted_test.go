package agent

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// waitServes waits until Envoy serves with the proxy's identity.
func (r *agentProcess) waitServes(who string) {
	r.t.Helper()
	r.eventually("traffic flows", func() error {
		c, id, err := dialProxy(r.address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if !strings.HasSuffix(id, who) {
			return errors.New(id)
		}
		return nil
	})
}

// waitStored waits until the agent has stored a complete configuration on disk.
func (r *agentProcess) waitStored() {
	r.t.Helper()
	r.eventually("the configuration is stored", func() error {
		_, body, err := r.http("GET", "15020/debug/xdsz")
		if err != nil || !strings.Contains(body, `"saved"`) {
			return errors.Join(err, errors.New(body))
		}
		return nil
	})
}

func TestEnvoyRestartsWithoutControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.153.1.1")
	s.args = append(s.args, "--restart")
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.waitStored()
	stop()
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("another Envoy", func() error {
		if r.envoy() == first {
			return errors.New("still the first")
		}
		return nil
	})
	r.waitServes("/ns/books/sa/shop")
	r.waitReport("/healthz/ready", "xds", 200, "last accepted configuration")
	r.waitReady()
	out, code := r.command("xds", "status")
	for _, want := range []string{"last-good", "Envoy has the stored configuration; the control plane last confirmed it"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("xds status does not contain %q: code %d\n%s", want, code, out)
		}
	}
	s.cp.start(t)
	r.eventually("the control plane is back", func() error {
		_, reasons, err := r.readiness()
		if reason := reasons["xds"]; err != nil || reason != "" {
			return errors.Join(err, errors.New(reason))
		}
		return nil
	})
}

// TestAgentThatStartsWithoutAControlPlaneServes uses a certificate in files, because no CA is available.
func TestAgentThatStartsWithoutAControlPlaneServes(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.153.2.1")
	id, err := url.Parse("spiffe://cluster.local/ns/books/sa/shop")
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	_, cert := s.cp.sign(t, &x509.Certificate{URIs: []*url.URL{id}}, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"cert-chain.pem": cert, "root-cert.pem": s.cp.rootPEM, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	} {
		s.write(t, filepath.Join("var/run/secrets/workload-spiffe-credentials", name), string(text))
	}
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.waitServes("/ns/books/sa/shop")
	r.waitStored()
	r.signal(syscall.SIGKILL)
	r.waitExit()
	stop()

	r = s.start(t)
	r.waitReady()
	r.waitServes("/ns/books/sa/shop")
	r.waitReport("/healthz/ready", "xds", 200, "last accepted configuration")
	r.signal(syscall.SIGKILL)
	r.waitExit()

	// The agent ignores a damaged file, and waits for the control plane.
	path := filepath.Join(s.dir, "etc/istio/proxy/last-good/envoy.config.cluster.v3.Cluster.snapshot")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[60] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	r = s.start(t)
	r.waitReport("/healthz/ready", "xds", 503, "not connected to the control plane")
	r.eventually("the log contains the reason", func() error {
		if !strings.Contains(r.out.String(), "the file is damaged") {
			return errors.New("not yet")
		}
		return nil
	})
	s.cp.start(t)
	r.waitReady()
	r.waitServes("/ns/books/sa/shop")
}
