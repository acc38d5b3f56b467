package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// withPrevious returns a configuration as a runtime sends it to a chained plugin.
func (h *testNode) withPrevious(version string) []byte {
	c := h.config(version)
	c["prevResult"] = json.RawMessage(primaryResult(version))
	return toJSON(h.t, c)
}

func TestPreviousResultIsReturnedUnchanged(t *testing.T) {
	pod := plainPod("plain")
	h := newTestNode(t).withAgent(pod)
	ns := testns.New(t)
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious(version))
		if answer.err != nil || answer.out != primaryResult(version) {
			t.Errorf("%s: %v: answered %s, want %s", version, answer.err, answer.out, primaryResult(version))
		}
	}
	if answer := h.call("ADD", pod, netnsPath(ns), toJSON(t, h.config("1.0.0"))); answer.out != `{"cniVersion":"1.0.0"}` {
		t.Errorf("response without a previous plugin: %s (%v)", answer.out, answer.err)
	}
}

func TestPodsOutsideTheMeshAreNotRedirected(t *testing.T) {
	plain := plainPod("plain")
	h := newTestNode(t).withAgent(plain)
	h.extra["exclude_namespaces"] = []string{"kube-system"}
	h.extra["pod_namespace"] = "istio-system"
	ns := testns.New(t)
	system, agent, nobody := meshPod("dns"), meshPod("istio-cni-node-abc"), meshPod("")
	system.Metadata.Namespace, agent.Metadata.Namespace, nobody.Metadata.Namespace = "kube-system", "istio-system", ""
	for _, c := range []struct {
		pod   *agentapi.Pod
		asked int
		why   string
	}{{system, 0, "excluded-namespace"}, {agent, 0, "own-agent"}, {nobody, 0, "no-kubernetes"}, {plain, 1, "no-sidecar"}} {
		before := h.agent.requests
		answer := h.call("ADD", c.pod, netnsPath(ns), h.withPrevious("1.0.0"))
		if answer.err != nil || answer.out != primaryResult("1.0.0") {
			t.Errorf("%s: %v: %s", c.why, answer.err, answer.out)
		}
		if h.agent.requests-before != c.asked {
			t.Errorf("%s: the agent was asked %d times, want %d", c.why, h.agent.requests-before, c.asked)
		}
		if last := h.agent.last(); last.Outcome != agentapi.Skipped || last.Reason != c.why || last.Command != "ADD" {
			t.Errorf("%s: the agent was told %+v", c.why, last)
		}
	}
}

func TestADDFailsForUnknownAndInvalidPods(t *testing.T) {
	bad := meshPod("bad")
	bad.Metadata.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "70000"
	long, half := meshPod("long"), meshPod("half")
	long.Metadata.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = strings.Repeat("x", 250_000)
	half.Metadata.Namespace = ""
	replaced := meshPod("replaced")
	known := meshPod("known")
	ns := testns.New(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pod   *agentapi.Pod
		netns string
		extra map[string]any
		down  string
		code  uint
		says  []string
	}{
		"unknown pod":       {pod: meshPod("unknown"), code: types.ErrUnknownContainer, says: []string{"shop/unknown", "no such pod"}},
		"agent not ready":   {pod: known, down: "the cache is not filled", code: types.ErrTryAgainLater, says: []string{"the cache is not filled", "kubeconfig", "Remedy", "might not be redirected"}},
		"no agent at all":   {pod: known, extra: map[string]any{"cni_agent_run_dir": "/nonexistent"}, code: types.ErrTryAgainLater, says: []string{"does not respond at /nonexistent", "Remedy"}},
		"bad annotation":    {pod: bad, code: CodeBadPod, says: []string{"shop/bad", "excludeOutboundPorts", "70000", "65535"}},
		"long annotation":   {pod: long, code: CodeBadPod, says: []string{"shop/long", "excludeOutboundPorts", "(250"}},
		"half a name":       {pod: half, code: types.ErrInvalidEnvironmentVariables, says: []string{"only one of the pod's namespace and name", "K8S_POD_NAMESPACE"}},
		"replaced":          {pod: withUID(replaced, "newer"), code: types.ErrTryAgainLater, says: []string{"newer", "uid-replaced", "replaced?"}},
		"the node's own":    {pod: known, netns: "/proc/self/ns/net", code: types.ErrInvalidNetNS, says: []string{"node's own"}},
		"no namespace":      {pod: known, netns: file, code: types.ErrInvalidNetNS, says: []string{"not a network namespace"}},
		"gone":              {pod: known, netns: "/var/run/netns/gone", code: types.ErrInvalidNetNS, says: []string{"/var/run/netns/gone"}},
		"ambient":           {pod: known, extra: map[string]any{"ambient_enabled": true}, code: types.ErrInvalidNetworkConfig, says: []string{"ambient_enabled"}},
		"several bad keys":  {pod: known, extra: map[string]any{"ipv6": "maybe", "plugin_log_level": "loud", "log_file": "x"}, code: types.ErrInvalidNetworkConfig, says: []string{"ipv6", "maybe", "loud", "log_file"}},
		"key of wrong type": {pod: known, extra: map[string]any{"proxy_listen_port": 70000}, code: types.ErrDecodingFailure, says: []string{"proxy_listen_port"}},
	} {
		h := newTestNode(t).withAgent(bad, long, replaced, known)
		h.agent.down, h.extra = c.down, c.extra
		if c.code == types.ErrTryAgainLater {
			h.agentTimeout = "1s"
		}
		netns := c.netns
		if netns == "" {
			netns = netnsPath(ns)
		}
		answer := h.call("ADD", c.pod, netns, h.withPrevious("1.0.0"))
		if answer.err == nil || answer.Code != c.code || answer.CNIVersion != "1.0.0" {
			t.Errorf("%s: %v, code %d of %s, want %d; %s", name, answer.err, answer.Code, answer.CNIVersion, c.code, answer.out)
		}
		if len(answer.out)+len(answer.log) > 32<<10 {
			t.Errorf("%s: the error has %d bytes, which is too large for an event", name, len(answer.out)+len(answer.log))
		}
		for _, want := range c.says {
			if !strings.Contains(answer.Msg+answer.Details, want) {
				t.Errorf("%s: %q is not in %q, %q", name, want, answer.Msg, answer.Details)
			}
		}
	}
}

func withUID(p *agentapi.Pod, uid string) *agentapi.Pod {
	q := *p
	q.Metadata.UID = uid
	return &q
}

func TestDELNeverFails(t *testing.T) {
	pod := meshPod("web")
	ns := testns.New(t)
	for name, c := range map[string]struct {
		netns  string
		config string
	}{
		"as usual":              {netnsPath(ns), `{"cniVersion":"1.1.0","name":"pods","type":"pilotfish-cni"}`},
		"namespace gone":        {"/var/run/netns/gone", `{"cniVersion":"1.0.0","name":"pods","type":"pilotfish-cni"}`},
		"no namespace":          {"", `{"cniVersion":"1.0.0","name":"pods","type":"pilotfish-cni"}`},
		"the node's own":        {"/proc/self/ns/net", `{"cniVersion":"1.0.0","name":"pods","type":"pilotfish-cni"}`},
		"bad configuration":     {netnsPath(ns), `{"cniVersion":"1.0.0","name":"pods","ipv6":"x","proxy_listen_port":-1}`},
		"no configuration":      {netnsPath(ns), ``},
		"no JSON":               {netnsPath(ns), `{`},
		"a version of tomorrow": {netnsPath(ns), `{"cniVersion":"9.0.0","name":"pods"}`},
	} {
		h := newTestNode(t) // without a node agent
		if answer := h.call("DEL", pod, c.netns, []byte(c.config)); answer.err != nil || answer.out != "" {
			t.Errorf("DEL, %s: %v: %s", name, answer.err, answer.out)
		}
		if answer := h.call("GC", pod, "", []byte(c.config)); answer.err != nil || answer.out != "" {
			t.Errorf("GC, %s: %v: %s", name, answer.err, answer.out)
		}
	}
}

func TestSTATUSReportsWhetherPodsCanStart(t *testing.T) {
	h := newTestNode(t).withAgent()
	status := func() error { return h.libcni().GetStatusNetworkList(t.Context(), h.list("1.1.0")) }
	if err := status(); err != nil {
		t.Errorf("ready: %v", err)
	}
	h.agent.down = "starting"
	if err := status(); err != nil {
		t.Errorf("STATUS fails without the setting, so a node agent in this network could never start: %v", err)
	}
	h.extra["status_asks_agent"] = true
	if err := status(); err == nil || !strings.Contains(err.Error(), "starting") || !strings.Contains(err.Error(), "until the mesh's node agent responds") {
		t.Errorf("STATUS while the agent starts: %v", err)
	}
	if answer := h.call("STATUS", plainPod("any"), "", toJSON(t, h.config("1.1.0"))); answer.CNIVersion != "1.1.0" || answer.Code != types.ErrPluginNotAvailable {
		t.Errorf("the error has the version %q and the code %d", answer.CNIVersion, answer.Code)
	}
	h.agent.down = ""
	if err := status(); err != nil {
		t.Errorf("ready: %v", err)
	}
	h.extra["policy_file"] = "/nonexistent"
	if err := status(); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("STATUS with a missing policy file: %v", err)
	}
}

func TestLogIsSentToTheNodeAgent(t *testing.T) {
	pod := plainPod("plain")
	h := newTestNode(t).withAgent(pod)
	h.extra["log_file"] = filepath.Join(h.dir, "cni.log")
	h.call("ADD", pod, netnsPath(testns.New(t)), h.withPrevious("1.0.0"))
	if len(h.agent.log) == 0 {
		t.Fatal("the agent received no log line")
	}
	e := h.agent.log[len(h.agent.log)-1]
	if e.Message != "the CNI command succeeded" || e.Level != "INFO" || e.Time.IsZero() || string(e.Attributes["pod"]) != `"shop/plain"` {
		t.Errorf("the agent received the log line %+v", e)
	}
	text, err := os.ReadFile(filepath.Join(h.dir, "cni.log"))
	if err != nil || !strings.Contains(string(text), `"pod":"shop/plain"`) {
		t.Errorf("the log file contains %q (%v)", text, err)
	}
	if last := h.agent.last(); last.Source != "agent" || last.ContainerID != "c-plain" || last.Seconds <= 0 || last.UID != "uid-plain" {
		t.Errorf("the agent received the result %+v", last)
	}
}

func TestCommandsByLibcniOfEveryVersion(t *testing.T) {
	pod := plainPod("plain")
	h := newTestNode(t).withAgent(pod)
	runtime := h.libcni()
	rt := runtimeConf(pod, testns.New(t))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Setenv("PRIMARY_VERSION", version)
		list := h.list(version)
		result, err := runtime.AddNetworkList(t.Context(), list, rt)
		if err != nil {
			t.Errorf("%s: ADD: %v", version, err)
			continue
		}
		if text := fmt.Sprint(result); !strings.Contains(text, "10.1.2.3") {
			t.Errorf("%s: ADD gave %s", version, text)
		}
		if version >= "0.4.0" {
			if err := runtime.CheckNetworkList(t.Context(), list, rt); err != nil {
				t.Errorf("%s: CHECK: %v", version, err)
			}
		}
		if version >= "1.1.0" {
			if err := runtime.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
				t.Errorf("%s: GC: %v", version, err)
			}
		}
		if err := runtime.DelNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("%s: DEL: %v", version, err)
		}
	}
	info, err := runtime.GetVersionInfo(t.Context(), "pilotfish-cni")
	if err != nil || len(info.SupportedVersions()) < 7 {
		t.Errorf("VERSION: %v, %v", info, err)
	}
}
