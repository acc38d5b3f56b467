package tlspolicy

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// handshake returns the connection state that a client and a server negotiate.
func handshake(t *testing.T, client, server *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		defer b.Close()
		_ = tls.Server(b, server).HandshakeContext(t.Context())
	}()
	c := tls.Client(a, client)
	err := c.HandshakeContext(t.Context())
	return c.ConnectionState(), err
}

func TestPoliciesDecideWhatIsAgreedOn(t *testing.T) {
	authority := testpki.New(t, "mesh")
	certificates := authority.ServerConfig(t, "server.example").Certificates
	for policy, want := range map[Policy]struct {
		version uint16
		curve   tls.CurveID
		refused *tls.Config // configuration of a server that the policy does not allow
	}{
		"":          {tls.VersionTLS13, tls.X25519MLKEM768, nil},
		FIPS1402:    {tls.VersionTLS12, tls.CurveP256, &tls.Config{MinVersion: tls.VersionTLS13}},
		FIPS1403:    {tls.VersionTLS13, tls.CurveP256, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}},
		PostQuantum: {tls.VersionTLS13, tls.X25519MLKEM768, &tls.Config{MaxVersion: tls.VersionTLS12}},
	} {
		client := &tls.Config{ServerName: "server.example", RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
		policy.Narrow(client)
		got, err := handshake(t, client, &tls.Config{Certificates: certificates})
		if err != nil || got.Version != want.version || got.CurveID != want.curve {
			t.Errorf("%q: %s with %v, %v", policy, tls.VersionName(got.Version), got.CurveID, err)
		}
		if want.refused == nil {
			continue
		}
		want.refused.Certificates = certificates
		if got, err := handshake(t, client, want.refused); err == nil {
			t.Errorf("%q accepts %s with %v", policy, tls.VersionName(got.Version), got.CurveID)
		}
	}
}

func TestAnUnknownPolicyIsReportedAndNarrowsNothing(t *testing.T) {
	for policy, ok := range map[Policy]bool{"": true, FIPS1402: true, FIPS1403: true, PostQuantum: true, "fips": false, "FIPS-140-2": false} {
		if err := policy.Check(); (err == nil) != ok {
			t.Errorf("%q: %v", policy, err)
		}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	Policy("fips").Narrow(config)
	if config.MaxVersion != 0 || config.CipherSuites != nil || config.CurvePreferences != nil {
		t.Errorf("an unknown policy narrows TLS: %+v", config)
	}
}
