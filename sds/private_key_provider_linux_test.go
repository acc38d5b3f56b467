package sds

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func TestKeysAreSentToConfiguredAccelerator(t *testing.T) {
	for name, message := range map[string]string{"cryptomb": "CryptoMbPrivateKeyMethodConfig", "qat": "QatPrivateKeyMethodConfig"} {
		m := newMaterial(t, testpki.New(t, "root"))
		server := startServer(t, Config{Source: newFakeSource(m), KeyProvider: &KeyProvider{Name: name, PollDelay: 10 * time.Millisecond, Fallback: true}})
		stream := sotwStream(t, server)
		stream.subscribe("", DefaultName)
		cert := decode(t, stream.next().Resources[0]).GetTlsCertificate()
		provider := cert.GetPrivateKeyProvider()
		switch {
		case cert.GetPrivateKey() != nil:
			t.Errorf("%s: the key is also sent without the provider", name)
		case provider.GetProviderName() != name || !provider.GetFallback() || !strings.HasSuffix(provider.GetTypedConfig().GetTypeUrl(), message):
			t.Errorf("%s: the provider is %s of %s", name, provider.GetProviderName(), provider.GetTypedConfig().GetTypeUrl())
		case !strings.Contains(string(provider.GetTypedConfig().GetValue()), string(m.Key)):
			t.Errorf("%s: the provider's configuration lacks the key", name)
		}
	}
	if _, err := New(Config{Socket: "s", KeyProvider: &KeyProvider{Name: "abacus"}}); err == nil {
		t.Error("an unknown accelerator is accepted")
	}
}

// Envoy's standard releases contain no accelerator, and reject its configuration even with fallback.
func TestEnvoyWithoutAcceleratorFallsBackToKey(t *testing.T) {
	for _, fallback := range []bool{true, false} {
		dir := t.TempDir()
		root := testpki.New(t, "root")
		server := startServer(t, Config{Socket: dir + "/sds", Source: newFakeSource(newMaterial(t, root)),
			KeyProvider: &KeyProvider{Name: "cryptomb", PollDelay: time.Millisecond, Fallback: fallback}})
		backend := backendPort(t)
		port := testenv.FreePort(t)
		envoytest.Start(t, testenv.Envoy(t), dir, fmt.Sprintf(envoyBootstrap, port, "GRPC", backend))
		if fallback {
			testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, root, root); return err })
			continue
		}
		testenv.Eventually(t, "Envoy's NACK is counted", func() error {
			if testutil.ToFloat64(server.metrics.nacks) == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		if _, err := handshake(t, port, root, root); err == nil {
			t.Error("Envoy received the key although fallback is not allowed")
		}
	}
}

func backendPort(t *testing.T) int {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port
}
