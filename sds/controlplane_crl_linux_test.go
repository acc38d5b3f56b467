package sds

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// Two roots have the same subject, as during a rotation. One of them signs through an intermediate, and only the
// intermediate has a list, as with an intermediate CA plugged into the mesh.
func TestEnvoyRejectsDeniedCertificates(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) { t.Parallel(); refuseDenied(t, version) })
	}
}

func refuseDenied(t *testing.T, version string) {
	dir := t.TempDir()
	first, second, plugged, foreign := testpki.New(t, "root"), testpki.New(t, "root"), testpki.New(t, "plugged"), testpki.New(t, "foreign")
	between := plugged.Intermediate(t, "between")
	roots := slices.Concat(first.PEM(), second.PEM(), plugged.PEM())
	m := newMaterial(t, first)
	m.Roots = roots
	server := startServer(t, Config{Socket: dir + "/sds", Source: newFakeSource(m)})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(envoyBootstrap, port, "DELTA_GRPC", backend.Listener.Addr().(*net.TCPAddr).Port))
	client := func(a *testpki.Authority) tls.Certificate {
		cert, key := a.Workload(t, "spiffe://cluster.local/ns/default/sa/productpage")
		pair, err := tls.X509KeyPair(append(cert, a.PEM()...), key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	good := map[string]tls.Certificate{"of the first root": client(first), "of the second": client(second), "of the intermediate": client(between)}
	bad := map[string]tls.Certificate{"of the first root": client(first), "of the second": client(second), "of the intermediate": client(between)}
	accepted := func(all map[string]tls.Certificate) error {
		for name, one := range all {
			if err := connectWith(port, one); err != nil {
				return fmt.Errorf("a certificate %s: %w", name, err)
			}
		}
		return nil
	}
	testenv.Eventually(t, "Envoy accepts all", func() error { return errors.Join(accepted(good), accepted(bad)) })

	var lists []byte
	for _, a := range []*testpki.Authority{first, second, between} {
		lists = append(lists, revoke(t, a, bad["of the first root"].Leaf.SerialNumber, bad["of the second"].Leaf.SerialNumber, bad["of the intermediate"].Leaf.SerialNumber)...)
	}
	denied := func() error {
		for name, one := range bad {
			if connectWith(port, one) == nil {
				return fmt.Errorf("a denied certificate %s is accepted", name)
			}
		}
		return nil
	}
	if err := server.SetRevocationLists(lists, roots); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "Envoy rejects denied certificates", denied)
	if err := accepted(good); err != nil {
		t.Error(err)
	}
	for name, broken := range map[string][2][]byte{"lists": {[]byte("no list"), roots}, "roots": {lists, []byte("no root")}} {
		if server.SetRevocationLists(broken[0], broken[1]) == nil {
			t.Errorf("malformed %s are accepted", name)
		}
	}
	if err := denied(); err != nil {
		t.Error(err)
	}

	// The added root has no list. Certificates of its workloads are still accepted.
	if err := server.SetExtraRoots("test", []string{string(foreign.PEM())}); err != nil {
		t.Fatal(err)
	}
	strangers := map[string]tls.Certificate{"of another trust domain": client(foreign)}
	testenv.Eventually(t, "a root without a list is trusted", func() error { return errors.Join(accepted(strangers), accepted(good)) })
	if ok, reason := server.Health(); !ok || !strings.Contains(reason, "CN=foreign") {
		t.Errorf("the health is %v, %q", ok, reason)
	}
	if err := server.SetExtraRoots("test", nil); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "Envoy rejects denied certificates again", denied)
	if _, reason := server.Health(); reason != "" {
		t.Error(reason)
	}

	if err := server.SetRevocationLists(nil, nil); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "Envoy accepts certificates that are no longer denied", func() error { return errors.Join(accepted(good), accepted(bad)) })
}
