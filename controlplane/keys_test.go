package controlplane_test

import (
	"fmt"
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

func TestKeysThatCannotBeFetchedAreToldAtTheRuleUntilTheyCan(t *testing.T) {
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
	p.problem("a.yaml:8:14: warning: RequestAuthentication default/tokens: spec.jwtRules[0].jwksUri:")
	p.problem("503")
	there.Store(true)
	healed := func(p *plane) {
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

	// What was fetched outlives a restart while the issuer is away.
	there.Store(false)
	p = start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, StateDir: state})
	p.problem("those from before are in use")
	for _, problem := range p.Status().Problems {
		if strings.Contains(problem.String(), `"kty"`) {
			t.Errorf("a problem shows keys: %s", problem)
		}
	}
}
