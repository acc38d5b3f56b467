package sts

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// envoyBootstrap makes Envoy call its control plane through Google's gRPC library, with tokens of the STS server.
const envoyBootstrap = `
node: {id: sidecar~127.0.0.1~test.default~default.svc.cluster.local, cluster: test}
dynamic_resources:
  lds_config: {ads: {}, resource_api_version: V3}
  ads_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services:
    - google_grpc:
        target_uri: localhost:%[1]d
        stat_prefix: xds
        channel_credentials: {ssl_credentials: {root_certs: {filename: %[2]q}}}
        call_credentials:
        - sts_service:
            token_exchange_service_uri: %[3]s
            subject_token_path: %[4]q
            subject_token_type: urn:ietf:params:oauth:token-type:jwt
            scope: https://www.googleapis.com/auth/cloud-platform
`

func TestEnvoyGetsTokens(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			clock := newClock()
			from := returning(clock, time.Hour)
			_, base, _ := start(t, Config{Exchanger: from, Check: workloadCheck, Now: clock.Now})
			authority := testpki.New(t, "xds")
			headers := make(chan []string, 100)
			_, port, err := net.SplitHostPort(secureGRPC(t, authority, headers))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			roots := filepath.Join(dir, "roots.pem")
			if err := os.WriteFile(roots, authority.PEM(), 0o600); err != nil {
				t.Fatal(err)
			}
			var n int
			_, _ = fmt.Sscan(port, &n)
			envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(envoyBootstrap, n, roots, base+TokenPath, writeToken(t)))
			testenv.Eventually(t, "Envoy calls its control plane", func() error {
				select {
				case got := <-headers:
					if len(got) != 1 || got[0] != "Bearer access-1" {
						t.Fatalf("the control plane was sent %q", got)
					}
					return nil
				default:
					return errors.New("not yet")
				}
			})
			if got := from.requests[0]; got.Scope != googleScope || string(got.Subject) != workloadToken(t) {
				t.Error("the exchange server did not receive all parameters of Envoy")
			}
		})
	}
}
