package hostile

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// policyAttacks are attempts to open a workload with an invalid policy.
var policyAttacks = []attack{{
	name: "the first version of a policy is refused, and what it selects stays open", position: neighbor,
	limit:   "no request and no plaintext connection reaches a workload that the policy selects",
	service: "workloads that no refused policy selects answer, and a corrected policy is in force",
	run:     refusedFirstPolicies,
}}

const policyTopology = `
apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: policies}
spec:
  config: config
  workloads:
  - {name: till, labels: {app: till}, ports: [{name: http, port: 8080, protocol: HTTP}], command: ["${PILOTFISH}", bookshop, --service=details]}
  - {name: vault, labels: {app: vault}, ports: [{name: http, port: 8080, protocol: HTTP}], command: ["${PILOTFISH}", bookshop, --service=details]}
  - {name: shelf, labels: {app: shelf}, ports: [{name: http, port: 8080, protocol: HTTP}], command: ["${PILOTFISH}", bookshop, --service=details]}
`

const policyServices = `
{apiVersion: v1, kind: Service, metadata: {name: till}, spec: {selector: {app: till}, ports: [{name: http, port: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: vault}, spec: {selector: {app: vault}, ports: [{name: http, port: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: shelf}, spec: {selector: {app: shelf}, ports: [{name: http, port: 8080}]}}
`

// The error of the first is in its rules, that of the second in the mode.
const (
	refusedAuthorization = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: guard}
spec:
  selector: {matchLabels: {app: till}}
  rules: [{to: [{operation: {metods: [GET]}}]}]
`
	refusedAuthentication = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mtls}
spec: {selector: {matchLabels: {app: vault}}, mtls: {mode: STRICTT}}
`
)

func refusedFirstPolicies(t *testing.T) {
	m := newLocalMesh(t, "policies", policyTopology, map[string]string{
		"services.yaml": policyServices, "authorization.yaml": refusedAuthorization, "authentication.yaml": refusedAuthentication,
	})
	if code, out := m.run("up", "-f", m.topology(), "--check"); code != 1 || !strings.Contains(out, "PF0213") {
		t.Errorf("up --check ended with status %d, and found\n%s", code, out)
	}
	m.start()
	get := func(workload string) (int, error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: requestTimeout}
		response, err := client.Get("http://" + m.instance(workload).ProxyAddress + ":8080/details/1")
		if err != nil {
			return 0, err
		}
		_ = response.Body.Close()
		return response.StatusCode, nil
	}
	expect := func(what, workload string, want int) {
		t.Helper()
		testenv.Eventually(t, what, func() error {
			if code, err := get(workload); code != want {
				return fmt.Errorf("status %d (%v), want %d", code, err, want)
			}
			return nil
		})
	}
	expect("a workload without policies answers", "shelf", http.StatusOK)
	if code, err := get("till"); code != http.StatusForbidden {
		t.Errorf("the workload of a refused AuthorizationPolicy answers with %d (%v)", code, err)
	}
	if code, err := get("vault"); err == nil {
		t.Errorf("the workload of a refused PeerAuthentication answers plaintext with %d", code)
	}

	m.write("authorization.yaml", strings.Replace(refusedAuthorization, "metods", "methods", 1))
	expect("a corrected AuthorizationPolicy is in force", "till", http.StatusOK)
	m.write("authorization.yaml", refusedAuthorization)
	m.write("authentication.yaml", strings.Replace(refusedAuthentication, "STRICTT", "PERMISSIVE", 1))
	expect("a corrected PeerAuthentication is in force", "vault", http.StatusOK)
	if code, err := get("till"); code != http.StatusOK {
		t.Errorf("the last accepted version is not in force: status %d (%v)", code, err)
	}
	m.write("authorization.yaml", strings.Replace(refusedAuthorization, "name: guard", "name: Guard_2", 1))
	expect("a policy without a valid name denies", "till", http.StatusForbidden)
	m.remove("authorization.yaml")
	expect("a removed policy does not stay", "till", http.StatusOK)
}

// exitCode returns the status that a command ended with.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func (m *localMesh) topology() string { return filepath.Join(m.dir, "mesh.yaml") }
