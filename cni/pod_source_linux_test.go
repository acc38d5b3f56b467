package cni

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// apiServer starts a fake Kubernetes API server; its first responses can be failures.
func (h *testNode) apiServer(failures int32, pods ...*agentapi.Pod) *atomic.Int32 {
	h.t.Helper()
	asked := &atomic.Int32{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= failures {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		for _, p := range pods {
			if r.URL.Path == "/api/v1/namespaces/"+p.Metadata.Namespace+"/pods/"+p.Metadata.Name {
				_ = json.NewEncoder(w).Encode(p)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","reason":"NotFound","message":"pods not found"}`)
	}))
	h.t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfig := fmt.Sprintf(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[{"name":"u","user":{"token":"s3cret"}}]}`,
		server.URL, base64.StdEncoding.EncodeToString(ca))
	if err := os.WriteFile(filepath.Join(h.dir, kubeconfigName), []byte(kubeconfig), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return asked
}

func TestADDQueriesTheAPIServerIfTheNodeAgentCannotAnswer(t *testing.T) {
	pod := meshPod("web")
	for name, c := range map[string]struct {
		prepare func(h *testNode) *atomic.Int32
		code    uint
		source  string
	}{
		"agent starting":           {func(h *testNode) *atomic.Int32 { h.withAgent(pod).agent.down = "starting"; return h.apiServer(0, pod) }, 0, "api"},
		"agent does not know":      {func(h *testNode) *atomic.Int32 { h.withAgent(); return h.apiServer(0, pod) }, 0, "api"},
		"agent has the pod before": {func(h *testNode) *atomic.Int32 { h.withAgent(withUID(pod, "old")); return h.apiServer(0, pod) }, 0, "api"},
		"neither knows":            {func(h *testNode) *atomic.Int32 { h.withAgent(); return h.apiServer(0) }, types.ErrUnknownContainer, ""},
		"API stumbles":             {func(h *testNode) *atomic.Int32 { h.withAgent(pod).agent.down = "starting"; return h.apiServer(2, pod) }, 0, "api"},
		"API has another one":      {func(h *testNode) *atomic.Int32 { h.withAgent(); return h.apiServer(0, withUID(pod, "new")) }, types.ErrTryAgainLater, ""},
	} {
		h := newTestNode(t)
		if c.code == types.ErrTryAgainLater {
			h.agentTimeout = "1s"
		}
		asked := c.prepare(h)
		answer := h.call("ADD", pod, netnsPath(testns.New(t)), h.withPrevious("1.0.0"))
		if (answer.err != nil) != (c.code != 0) || answer.Code != c.code {
			t.Errorf("%s: %v, code %d, want %d: %s", name, answer.err, answer.Code, c.code, answer.out)
		}
		if last := h.agent.last(); last.Source != c.source {
			t.Errorf("%s: read from %q, want %q", name, last.Source, c.source)
		}
		if asked.Load() == 0 {
			t.Errorf("%s: the API server was not asked", name)
		}
		if strings.Contains(answer.out+answer.log, "s3cret") {
			t.Errorf("%s: the token is told", name)
		}
	}
}

func TestADDWorksWithoutANodeAgent(t *testing.T) {
	pod := meshPod("web")
	h := newTestNode(t)
	h.apiServer(0, pod)
	ns := testns.New(t)
	if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil || inForce(t, ns) == nil {
		t.Errorf("%v: %s", answer.err, answer.out)
	}
}

const policyText = `
default: refuse
rules:
- match: {K8S_POD_NAME: "web-*"}
  annotations: {traffic.sidecar.istio.io/excludeOutboundPorts: "5432"}
  env: {ISTIO_META_DNS_CAPTURE: "true"}
  uid: 2000
- match: {CNI_CONTAINERID: "c-job*"}
  action: skip
- match: {K8S_POD_NAME: bad}
  annotations: {traffic.sidecar.istio.io/includeInboundPorts: "70000"}
`

func TestPolicyFileDecidesWithoutKubernetes(t *testing.T) {
	h := newTestNode(t) // without a node agent and an API server
	file := filepath.Join(h.dir, "policy.yaml")
	h.extra["policy_file"] = file
	if err := os.WriteFile(file, []byte(policyText), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		captured bool
		says     string
	}{{"web-1", true, ""}, {"job-1", false, ""}, {"other", false, "does not allow this sandbox to start"}, {"bad", false, `"70000" is not a port`}} {
		ns := testns.New(t)
		answer := h.call("ADD", plainPod(c.name), netnsPath(ns), h.withPrevious("1.0.0"))
		if captured := inForce(t, ns) != nil; captured != c.captured {
			t.Errorf("%s: captured: %v", c.name, captured)
		}
		if (answer.err != nil) != (c.says != "") || !strings.Contains(answer.Msg+answer.Details, c.says) {
			t.Errorf("%s: %v: %s", c.name, answer.err, answer.out)
		}
	}
	for text, says := range map[string]string{
		"rule: []\n": "field rule not found", // misspelled
		"default: skip\n---\nrules: [{match: {K8S_POD_NAME: web-1}}]\n": "more than one YAML document",
		"default: skip\n---\nrules: [\n":                                "more than one YAML document",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if answer := h.call("ADD", plainPod("web-1"), netnsPath(testns.New(t)), h.withPrevious("1.0.0")); !strings.Contains(answer.Details, says) {
			t.Errorf("%q: %s, want %q", text, answer.out, says)
		}
	}
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if answer := h.call("ADD", plainPod("web-1"), netnsPath(testns.New(t)), h.withPrevious("1.0.0")); !strings.Contains(answer.Details, "not a regular file") {
		t.Errorf("ADD with a named pipe as policy file: %s", answer.out)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(policyText)
	f.Add("rules: [{match: {a: '['}}]")
	f.Add("default: x")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePolicy([]byte(text))
		if err != nil {
			return
		}
		args, _ := parseArgs("K8S_POD_NAME=web-1;K8S_POD_NAMESPACE=shop")
		pod, skip, err := p.decide(args, "c", "eth0")
		if (pod == nil) == (skip == nil && err == nil) {
			t.Errorf("pod %v, skip %v, error %v", pod, skip, err)
		}
	})
}

func FuzzCommand(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0"}}`, "A=b;K8S_POD_NAME=x")
	f.Add(`{"log_file_max_bytes":-1,"exclude_namespaces":null}`, ";;=;")
	f.Fuzz(func(t *testing.T, config, args string) {
		if c, err := parseConfig([]byte(config)); err == nil {
			_ = c.validate()
			if !json.Valid(c.result()) {
				t.Errorf("the result %q is not valid JSON", c.result())
			}
		}
		_, _ = parseArgs(args)
	})
}
