package controlplane_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// handshake performs a TLS handshake in which the client offers the versions, ciphers and curves of the configuration.
func handshake(at netip.AddrPort, offer *tls.Config) error {
	offer = offer.Clone()
	offer.InsecureSkipVerify = true // only the parameters of the connection matter
	conn, err := tls.Dial("tcp", at.String(), offer)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// chacha20 offers TLS 1.2 with a cipher that neither FIPS policy allows.
var chacha20 = &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}

// forbidden contains, for each policy, clients that offer only parameters that the policy forbids.
var forbidden = map[tlspolicy.Policy]map[string]*tls.Config{
	tlspolicy.FIPS1402: {
		"TLS 1.3":  {MinVersion: tls.VersionTLS13},
		"ChaCha20": chacha20,
		"P-384":    {CurvePreferences: []tls.CurveID{tls.CurveP384}},
	},
	tlspolicy.FIPS1403: {
		"ChaCha20": chacha20,
		"X25519":   {CurvePreferences: []tls.CurveID{tls.X25519}},
	},
	tlspolicy.PostQuantum: {
		"TLS 1.2": {MaxVersion: tls.VersionTLS12},
		"X25519":  {CurvePreferences: []tls.CurveID{tls.X25519}},
	},
}

func TestTLSPortsRefuseWhatThePolicyForbids(t *testing.T) {
	open := startServerWithoutConfig(t)
	for policy, offers := range forbidden {
		p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}, TLSPolicy: policy})
		for what, offer := range offers {
			for port, at := range map[string][2]netip.AddrPort{
				"xDS and CA":     {p.SecureAddr(), open.SecureAddr()},
				"token exchange": {p.TokensAddr(), open.TokensAddr()},
			} {
				if err := handshake(at[0], offer); err == nil || !strings.Contains(err.Error(), "remote error: tls: ") {
					t.Errorf("%s, port for %s: a client that offers only %s got %v, want a TLS alert from the server", policy, port, what, err)
				}
				if err := handshake(at[1], offer); err != nil {
					t.Errorf("no policy, port for %s: a client that offers only %s is refused: %v", port, what, err)
				}
			}
		}
		if _, err := clusters(asBearer(t.Context(), p.token("shop", "reviews")), t, p.dial(), "shop", "reviews"); err != nil {
			t.Errorf("%s: a proxy is refused: %v", policy, err)
		}
		if status, got := p.requestToken(p.subjectToken("shop", "web"), nil); status != http.StatusOK {
			t.Errorf("%s: a token exchange is refused: %+v", policy, got)
		}
	}
}

func TestKeysOfIssuersAreFetchedAsThePolicyAllows(t *testing.T) {
	authority := testpki.New(t, "issuer")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	var fetched atomic.Int32
	issuer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		_, _ = w.Write([]byte(somePublicKey))
	}))
	issuer.TLS = authority.ServerConfig(t, "127.0.0.1")
	issuer.TLS.MinVersion = tls.VersionTLS13
	issuer.StartTLS()
	t.Cleanup(issuer.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "keys.yaml"), "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: keys, namespace: default}\n"+
		"spec: {jwtRules: [{issuer: a, jwksUri: "+issuer.URL+"}]}\n")
	cfg := controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, Keys: controlplane.KeyFetching{RootsFile: roots}, TLSPolicy: tlspolicy.FIPS1402}
	start(t, cfg).awaitProblem("protocol version")
	if n := fetched.Load(); n != 0 {
		t.Errorf("the keys were fetched %d times over TLS 1.3, which the policy forbids", n)
	}
	cfg.TLSPolicy = ""
	start(t, cfg)
	testenv.Eventually(t, "the keys are fetched without a policy", func() error {
		if fetched.Load() == 0 {
			return errors.New("no request arrived")
		}
		return nil
	})
}

func TestCommandReadsTheTLSPolicyFromTheEnvironment(t *testing.T) {
	for value, c := range map[string]struct{ refused, warned bool }{
		"":           {false, false},
		"fips-140-3": {true, false},
		"fips":       {false, true}, // Istio ignores this value too
	} {
		t.Setenv("COMPLIANCE_POLICY", value)
		p := startCommand(t)
		for _, port := range []string{"secure", "tokens"} {
			if err := handshake(p.address(port), chacha20); (err != nil) != c.refused {
				t.Errorf("COMPLIANCE_POLICY=%s, %s port: a client that offers only ChaCha20 got %v", value, port, err)
			}
		}
		warning := `"\"fips\" is not a TLS policy: use one of fips-140-2, fips-140-3, pqc"`
		if warned := strings.Contains(p.log.String(), warning); warned != c.warned {
			t.Errorf("COMPLIANCE_POLICY=%s: the log has a warning: %v\n%s", value, warned, p.log.String())
		}
		p.stop()
	}
}
