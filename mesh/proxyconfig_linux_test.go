package mesh

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const threeConfigs = `
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: mesh, namespace: istio-system}
spec: {concurrency: 3, environmentVariables: {ISTIO_META_FROM: mesh, ISTIO_META_ALSO: mesh, POD_NAME: mine, DNS_KEEP_NAMES: "false"}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: some, namespace: default}
spec: {selector: {matchLabels: {app: a}}, concurrency: 2, environmentVariables: {ISTIO_META_FROM: some, GUARD_AGENT_SOCKETS: "false", LD_PRELOAD: /nonexistent, ENVOY_PATH: /nonexistent, PROXY_CONFIG: "{binaryPath: /nonexistent}", EXIT_ON_ZERO_ACTIVE_CONNECTIONS: "true"}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: others, namespace: other}
spec: {concurrency: 5}
`

const oneBootstrap = `
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a}
spec:
  workloadSelector: {labels: {app: a}}
  configPatches:
  - {applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 7s, static_resources: {clusters: [{name: from-a-patch, type: STATIC, connect_timeout: 1s}]}}}}
  - {applyTo: BOOTSTRAP, match: {context: GATEWAY}, patch: {operation: MERGE, value: {stats_flush_interval: 9s}}}
`

// A sidecar starts with the ProxyConfigs of its workload: the more specific one overrides the other, and the mesh's own
// settings override both. EnvoyFilters patch its bootstrap.
func TestSidecarsUseProxyConfigAndEnvoyFilter(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "istio"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "istio", "proxies.yaml"), []byte(threeConfigs+oneBootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMesh(t, testConfig(t, writeTopology(t, dir, `
  config: istio
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], `+appPort+`}
  - {name: b, command: ["${PILOTFISH}", app], `+appPort+`}
`)))
	m.waitReady()
	for name, want := range map[string][]string{
		"a": {"--concurrency 2 ", "ISTIO_META_FROM=some ", "ISTIO_META_ALSO=mesh ", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true ", "DNS_KEEP_NAMES=false ", "POD_NAME=a ", "ISTIO_BOOTSTRAP_OVERRIDE=" + bootstrapPatchPath + " "},
		"b": {"--concurrency 3 ", "ISTIO_META_FROM=mesh ", "POD_NAME=b "},
	} {
		var answer string
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", m.instance(name).Agent.PID, file))
			if err != nil {
				t.Fatal(err)
			}
			answer += strings.ReplaceAll(string(data), "\x00", " ")
		}
		for _, text := range []string{"GUARD_AGENT_SOCKETS", "LD_PRELOAD", "/nonexistent", "binaryPath"} {
			if strings.Contains(answer, text) {
				t.Errorf("the agent of %s has %s, which a tenant set", name, text)
			}
		}
		for _, text := range want {
			if !strings.Contains(answer, text) {
				t.Errorf("the agent of %s has no %q", name, text)
			}
		}
	}
	patch, err := os.ReadFile(filepath.Join(m.runtime.path, workloadsDir, "a", bootstrapPatchPath))
	if want := `{"static_resources":{"clusters":[{"name":"from-a-patch","type":"STATIC","connect_timeout":"1s"}]},"stats_flush_interval":"7s"}`; err != nil || string(patch) != want {
		t.Errorf("%s %v\nwant %s", patch, err, want)
	}
	for _, name := range []string{"GUARD_AGENT_SOCKETS", "LD_PRELOAD", "ENVOY_PATH", "PROXY_CONFIG"} {
		if !slices.ContainsFunc(m.Status(t.Context()).Control.Problems, func(p config.Problem) bool {
			return p.Code == config.NoEffect && p.Field == "spec.environmentVariables["+name+"]" && p.Severity == config.Warning
		}) {
			t.Errorf("no finding about %s: %v", name, m.Status(t.Context()).Control.Problems)
		}
	}
}
