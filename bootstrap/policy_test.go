package bootstrap

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// TestEnvoyKeepsToTheCompliancePolicy checks which TLS parameters Envoy accepts from clients. The bootstrap configures
// upstream connections with the same parameters.
func TestEnvoyKeepsToTheCompliancePolicy(t *testing.T) {
	only := func(version uint16, curve tls.CurveID) *tls.Config {
		return &tls.Config{MinVersion: version, MaxVersion: version, CurvePreferences: []tls.CurveID{curve}}
	}
	policies := []struct {
		policy         tlspolicy.Policy
		taken, refused *tls.Config
	}{
		{tlspolicy.FIPS1402, only(tls.VersionTLS12, tls.CurveP256), only(tls.VersionTLS13, tls.CurveP256)},
		{tlspolicy.FIPS1403, only(tls.VersionTLS13, tls.CurveP384), only(tls.VersionTLS13, tls.X25519)},
		{tlspolicy.PostQuantum, only(tls.VersionTLS13, tls.X25519MLKEM768), only(tls.VersionTLS12, tls.CurveP256)},
	}
	for i, version := range []string{testenv.OldEnvoyVersion, testenv.EnvoyVersion} {
		for j, tc := range policies {
			t.Run(fmt.Sprintf("%s of Envoy %s", tc.policy, version), func(t *testing.T) {
				t.Parallel()
				c := sidecarAt(t, fmt.Sprintf("127.172.%d.%d", i+1, j+1))
				mesh := testpki.New(t, "mesh")
				c.TLSPolicy, c.SecureMetricsPort = tc.policy, 15091
				c.ProxyConfig.EnvoyMetricsService = &meshv1.RemoteService{Address: "127.0.0.1:9", TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL}}
				c.SDSSocket = filepath.Join(t.TempDir(), "sds")
				serveSecrets(t, c.SDSSocket, mesh)
				run(t, version, c)
				address := hostPort(c.Bind.String(), 15091)
				testenv.Eventually(t, "Envoy accepts a client that the policy allows", func() error { return shakeHands(t, address, mesh, tc.taken) })
				if err := shakeHands(t, address, mesh, tc.refused); err == nil {
					t.Errorf("Envoy accepts a client with %v and %v", tls.VersionName(tc.refused.MaxVersion), tc.refused.CurvePreferences)
				}
			})
		}
	}
}

// shakeHands connects to Envoy with a certificate of the mesh and the TLS parameters in offers.
func shakeHands(t *testing.T, address string, mesh *testpki.Authority, offers *tls.Config) error {
	config := meshClient(t, mesh, mesh).tls()
	config.MinVersion, config.MaxVersion, config.CurvePreferences = offers.MinVersion, offers.MaxVersion, offers.CurvePreferences
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return err
	}
	return conn.Close()
}
