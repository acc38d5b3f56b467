package controlplane_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const somePublicKey = `{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","x":"x2st3ZHV9iWD2UkMfCuIrkFzwQxUTw5gRoY56-DLpSM","y":"dVtnkeID7e_Nlp46n_MeN8N0wpAlzO2LapmMxScDXIE"}]}`

func TestKeysNotFetchedAreReportedAtTheRule(t *testing.T) {
	var there atomic.Bool
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !there.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, somePublicKey)
	}))
	t.Cleanup(issuer.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: default}
spec:
  jwtRules:
  - issuer: someone
    jwksUri: `+issuer.URL+`/keys
`)
	state := filepath.Join(t.TempDir(), "state")
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, StateDir: state})
	p.awaitProblem("a.yaml:8:14: warning: RequestAuthentication default/tokens: spec.jwtRules[0].jwksUri:")
	p.awaitProblem("503")
	there.Store(true)
	healed := func(p *testServer) {
		t.Helper()
		testenv.Eventually(t, "the keys are fetched", func() error {
			for _, problem := range p.Status().Problems {
				if problem.Code == config.KeysNotFetched {
					return fmt.Errorf("%s", problem)
				}
			}
			return nil
		})
	}
	healed(p)
	p.stop()

	// Fetched keys survive a restart while the issuer is unavailable.
	there.Store(false)
	p = start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, StateDir: state})
	p.awaitProblem("proxies use the keys that were fetched before")
	for _, problem := range p.Status().Problems {
		if strings.Contains(problem.String(), `"kty"`) {
			t.Errorf("a problem shows keys: %s", problem)
		}
	}
}

func TestBlockedNetworksOfKeysAreReadFromTheEnvironment(t *testing.T) {
	t.Setenv("BLOCKED_CIDRS_IN_JWKS_URIS", "10.0.0.0/8,all")
	cmd := controlplane.NewCommand()
	cmd.SetArgs([]string{"--config-dir", t.TempDir(), "--state-dir", t.TempDir()})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	err := cmd.Execute()
	if err == nil || !strings.Contains(err.Error(), `BLOCKED_CIDRS_IN_JWKS_URIS): "all" is not a network`) {
		t.Errorf("error %v", err)
	}
}

func TestLoopbackKeysRequireALoopbackControlPlane(t *testing.T) {
	keys := httptest.NewServer(http.NotFoundHandler())
	defer keys.Close()
	document := "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: keys, namespace: default}\n" +
		"spec: {jwtRules: [{issuer: a, jwksUri: " + keys.URL + "}]}\n"
	for _, c := range []struct {
		address, problem string
		allow            bool
	}{
		{"127.0.0.1", "404 Not Found", false},
		{"0.0.0.0", "127.0.0.1 is a loopback address", false},
		{"0.0.0.0", "404 Not Found", true},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "keys.yaml"), document)
		p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, Address: c.address, Keys: controlplane.KeyFetching{AllowLoopback: c.allow}})
		p.awaitProblem(c.problem)
	}
}
