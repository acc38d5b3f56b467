package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Two workloads that call each other, in a mesh with real agents and real Envoys.
const twoWorkloads = `
  config: istio
  workloads:
  - {name: a, serviceAccount: alice, command: ["${PILOTFISH}", caller], ` + appPort + `}
  - {name: b, serviceAccount: bob, command: ["${PILOTFISH}", caller], ` + appPort + `}
`

const twoServices = `
apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  selector: {app: a}
  ports: [{name: http, port: 80, targetPort: 9080}]
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec:
  selector: {app: b}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: STRICT}}
`

func realTopology(t *testing.T) *topology.Topology {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "istio"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "istio", "services.yaml"), []byte(twoServices), 0o600); err != nil {
		t.Fatal(err)
	}
	return writeTopology(t, dir, twoWorkloads)
}

func getText(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func TestRealSidecarsAuthenticateWorkloads(t *testing.T) {
	top := realTopology(t)
	cfg := testConfig(t, top)
	cfg.AgentCommand = []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	a, b := m.Instances()[0], m.Instances()[1]

	call := fmt.Sprintf("http://%s:9080/call/b", a.App)
	var body string
	eventually(t, "a call from a to b", func() bool {
		var status int
		status, body = getText(t, call)
		return status == http.StatusOK
	})
	if !strings.Contains(body, "b was called by") || !strings.Contains(body, "URI=spiffe://cluster.local/ns/default/sa/alice") {
		t.Errorf("b returns: %s", body)
	}
	if status, _ := getText(t, fmt.Sprintf("http://%s:9080/who", b.Proxy)); status == http.StatusOK {
		t.Error("the sidecar accepted a call without mTLS")
	}

	eventually(t, "a status with Envoy's process, certificate, configuration and request rate", func() bool {
		_, _ = getText(t, call)
		s := m.instance("b")
		return s.Ready && s.EnvoyPID != 0 && s.Certificate != nil && s.Config.State == ConfigInSync && s.RequestsPerSecond > 0
	})
	if c := m.instance("b").Certificate; c.SPIFFEID != "spiffe://cluster.local/ns/default/sa/bob" || time.Until(c.Expires) < time.Hour {
		t.Errorf("the certificate is %+v", c)
	}

	m.tokenIsExchanged(a)
	m.badDocumentIsReportedAndSolved(filepath.Join(top.Config[0], "bad.yaml"))
	m.killedEnvoyIsRestarted("b")
	eventually(t, "a call from a to b after the restart of Envoy", func() bool {
		status, _ := getText(t, call)
		return status == http.StatusOK
	})
}

// tokenIsExchanged exchanges a token as an application does, at its sidecar. It verifies the result as a service
// outside of the mesh does.
func (r *testMesh) tokenIsExchanged(i *topology.Instance) {
	r.t.Helper()
	status, body := getText(r.t, fmt.Sprintf("http://%s:9080/token?audience=https://orders.example", i.App))
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
		r.t.Fatalf("the response to the token exchange is %d %s", status, body)
	}
	keys, err := r.authority.TokenKeys()
	if err != nil {
		r.t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(got.Token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		r.t.Fatal(err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys, &claims); err != nil {
		r.t.Fatal(err)
	}
	if claims.Subject != "spiffe://cluster.local/ns/default/sa/alice" || !claims.Audience.Contains("https://orders.example") {
		r.t.Errorf("the token has the claims %+v", claims)
	}
}

func (r *testMesh) badDocumentIsReportedAndSolved(file string) {
	r.t.Helper()
	bad := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v}\nspec:\n  hosts: [b]\n  http: [{timeout: soon}]\n"
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		r.t.Fatal(err)
	}
	event := r.find("the bad document", func(e Event) bool { return e.Kind == ConfigProblem && strings.HasSuffix(e.Problem.At.File, "bad.yaml") })
	if event.Problem.At.Line != 6 || event.Problem.Value != "soon" {
		r.t.Errorf("reported %s", event.Problem)
	}
	if s := r.Status(context.Background()); len(s.Control.Problems) == 0 {
		r.t.Error("status has no problem")
	}
	if err := os.Remove(file); err != nil {
		r.t.Fatal(err)
	}
	r.find("its end", func(e Event) bool { return e.Kind == ProblemSolved && strings.HasSuffix(e.Problem.At.File, "bad.yaml") })
}

func (r *testMesh) killedEnvoyIsRestarted(name string) {
	r.t.Helper()
	before, agent := r.EnvoyPID(name), r.instance(name).Agent.PID
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "another Envoy", func() bool {
		now := r.EnvoyPID(name)
		return now != 0 && now != before && r.instance(name).Ready
	})
	if r.instance(name).Agent.PID != agent {
		r.t.Error("the agent died with its Envoy")
	}
}

func TestEnvoysDieWithKilledMesh(t *testing.T) {
	top, dir := realTopology(t), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "unguarded", "agent")
	client, err := Connect(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	status, err := client.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of agents and applications", func() bool { return len(processesWithVariable(runVariable+"="+run)) == 0 })
	for _, i := range status.Instances {
		if i.EnvoyPID == 0 {
			t.Errorf("%s had no Envoy", i.Name)
		}
		eventually(t, "the end of "+i.Name+"'s Envoy", func() bool {
			s, err := readStat(i.EnvoyPID)
			return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || s.zombie
		})
	}
	if _, err := killLeftovers(filepath.Join(dir, top.Name)); err != nil {
		t.Error(err)
	}
}

// The name of b resolves to an address at which the sidecar of a listens. The sidecar adds the identity of a to the
// call.
func TestApplicationsFindServicesByDNS(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "istio"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "istio", "services.yaml"), []byte(twoServices), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, writeTopology(t, dir, `
  config: istio
  workloads:
  - name: a
    serviceAccount: alice
    command: ["${PILOTFISH}", caller]
    upstreams: [{host: b.default.svc.cluster.local, port: 80}]
    `+appPort+`
  - {name: b, serviceAccount: bob, command: ["${PILOTFISH}", caller], `+appPort+`}
`))
	cfg.AgentCommand = []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	a := m.Instances()[0]
	for _, name := range []string{"b", "b.default", "b.default.svc.cluster.local"} {
		var body string
		eventually(t, "a call from a to "+name, func() bool {
			var status int
			status, body = getText(t, fmt.Sprintf("http://%s:9080/dial/%s", a.App, name))
			return status == http.StatusOK
		})
		if !strings.Contains(body, "b was called by") || !strings.Contains(body, "URI=spiffe://cluster.local/ns/default/sa/alice") {
			t.Errorf("the call to %s returned %s", name, body)
		}
	}
	if status, body := getText(t, fmt.Sprintf("http://%s:9080/dial/nobody.default.svc.cluster.local", a.App)); status != http.StatusBadGateway {
		t.Errorf("the call to an unknown name returned %d %s", status, body)
	}
}
