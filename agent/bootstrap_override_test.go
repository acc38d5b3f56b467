package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// runCommand runs one of the agent's commands and returns its output and exit code.
func (s *agentSetup) runCommand(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	s.args = args
	cmd := s.command()
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, s.env, &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func TestEachEnvoyChecksTheBootstrap(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.1.1")
	s.write(t, "good.yaml", "layered_runtime: {layers: [{name: own, static_layer: {a: 1}}]}\n")
	s.write(t, "bad.yaml", "- {op: add, path: /static_resources/clusters/-, value: {name: x, type: STATIC, transport_socket: {name: no.such.socket}}}\n")
	env := s.env
	for _, version := range testenv.EnvoyVersions() {
		for _, kind := range []string{"sidecar", "router", "waypoint"} {
			s.env = append(env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), "ISTIO_BOOTSTRAP_OVERRIDE=good.yaml", "PROXY_MEMORY_LIMIT=256Mi")
			out, errOut, code := s.runCommand(t, "bootstrap", kind, "--validate")
			if code != 0 || !strings.Contains(errOut, "Envoy "+version) || !json.Valid([]byte(out)) || !strings.Contains(out, `"own"`) {
				t.Errorf("%s as a %s: code %d, %s", version, kind, code, errOut)
			}
		}
		s.env = append(env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), "ISTIO_BOOTSTRAP_OVERRIDE=bad.yaml")
		out, errOut, code := s.runCommand(t, "bootstrap", "--validate")
		if code != 2 || out != "" || !strings.Contains(errOut, "bad.yaml: Envoy") || !strings.Contains(errOut, "no.such.socket") {
			t.Errorf("%s accepts a missing socket: code %d, %s%s", version, code, out, errOut)
		}
	}
}

func TestGRPCBootstrapIsReadableByAll(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.2.1")
	s.env = append(s.env, "DISABLE_ENVOY=true", "GRPC_XDS_BOOTSTRAP=./shared/grpc.json", "OUTPUT_CERTS=./certs")
	want, errOut, code := s.runCommand(t, "bootstrap", "--grpc")
	if code != 0 || !strings.Contains(want, `"server_uri": "unix://`+s.dir+`/etc/istio/proxy/XDS"`) || !strings.Contains(want, s.dir+"/certs/key.pem") {
		t.Fatalf("code %d: %s%s", code, want, errOut)
	}
	s.args = []string{"proxy", "sidecar"}
	r := s.start(t)
	file := filepath.Join(s.dir, "shared", "grpc.json")
	r.eventually("the agent responds", func() error {
		_, _, err := r.http("GET", "15020/healthz/live")
		return err
	})
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("written was %s (%v), want what --grpc prints: %s", got, err, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v %v: applications of other users cannot read it", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "etc/istio/proxy", config.BootstrapFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Envoy's bootstrap: %v %v, want mode 0600", info.Mode(), err)
	}
}

// An invalid override must prevent any start or write.
func TestOverrideThatCannotBeUsedStopsTheStart(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.3.1")
	s.write(t, "broken.json", `{"admin": `)
	s.write(t, "harmful.json", `[{"op": "remove", "path": "/dynamic_resources"}]`)
	s.write(t, "template.json", `{"node": {"id": "{{ .nodeIdentity }}"}}`)
	env := s.env
	for setting, want := range map[string]string{
		"ISTIO_BOOTSTRAP_OVERRIDE=harmful.json":          "dynamic_resources",
		"ISTIO_BOOTSTRAP=template.json":                  "template.json:1: option .nodeIdentity is not known",
		"ISTIO_BOOTSTRAP=missing.json":                   "missing.json: no such file",
		"PROXY_CONFIG={customConfigFile: ./broken.json}": "broken.json",
	} {
		s.env = append(env, setting)
		for _, command := range [][]string{{"proxy", "sidecar"}, {"config"}, {"bootstrap"}} {
			out, errOut, code := s.runCommand(t, command...)
			if code != 2 || !strings.Contains(errOut, want) {
				t.Errorf("%s %v: code %d, %s%s; want 2 and %q", setting, command, code, out, errOut, want)
			}
		}
		if _, err := os.Stat(filepath.Join(s.dir, "etc/istio/proxy", config.BootstrapFile)); err == nil {
			t.Errorf("%s: a bootstrap was written nevertheless", setting)
		}
	}
}

// With Istio's agent the pod starts without such an override, so the agent only warns.
func TestOverrideThatIstioToleratesIsAWarning(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.3.2")
	s.write(t, "broken.json", `{"admin": `)
	s.write(t, "unknown.json", `{"static_resorces": {}}`)
	s.write(t, "template.json", `{"node": {"id": "{{ .nodeIdentity }}"}}`)
	if err := syscall.Mkfifo(filepath.Join(s.dir, "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := s.env
	for file, want := range map[string]string{
		"pipe.json": "pipe.json is not a regular file", "missing.json": "missing.json: no such file", "broken.json": "broken.json is neither JSON nor YAML",
		"unknown.json": "static_resorces: unknown field", "template.json": "templates are supported only for whole bootstraps",
	} {
		s.env = append(env, "ISTIO_BOOTSTRAP_OVERRIDE="+file)
		out, errOut, code := s.runCommand(t, "config")
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: code %d, %s%s; want 0 and %q", file, code, out, errOut, want)
		}
	}
}

func TestEnvoyOfProxyConfigRuns(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.3.3")
	old := testenv.EnvoyOf(t, testenv.OldEnvoyVersion)
	s.env = append(s.env, "ENVOY_PATH=", "PROXY_CONFIG={binaryPath: "+old+"}")
	_, errOut, code := s.runCommand(t, "bootstrap", "--validate")
	if want := "Envoy " + testenv.OldEnvoyVersion + " (" + old + ")"; code != 0 || !strings.Contains(errOut, want) {
		t.Errorf("code %d, %s; want 0 and %q", code, errOut, want)
	}
}

func TestOverrideThatEnvoyRefusesEndsTheAgentWithTheFile(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.6.2")
	s.write(t, "refused.yaml", "stats_flush_interval: 600s\n")
	s.env = append(s.env, "ISTIO_BOOTSTRAP_OVERRIDE=refused.yaml")
	_, errOut, code := s.runCommand(t, "proxy", "sidecar")
	if code != 2 || !strings.Contains(errOut, "refused.yaml") || !strings.Contains(errOut, "StatsFlushInterval") {
		t.Errorf("code %d, want 2, and:\n%s", code, errOut)
	}
}

func TestOverrideReachesTheRunningEnvoy(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.4.1")
	s.write(t, "override.yaml", "layered_runtime: {layers: [{name: own, static_layer: {of.the.override: $(HOST_IP)}}]}\n")
	s.env = append(s.env, "ISTIO_BOOTSTRAP_OVERRIDE=override.yaml", "HOST_IP=10.11.12.13")
	r := s.start(t)
	r.eventually("Envoy has the override", func() error {
		_, body, err := r.http("GET", "15000/runtime")
		if err == nil && !strings.Contains(body, "10.11.12.13") {
			err = errors.New(body)
		}
		return err
	})
}

func TestCompletionExists(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.5.1")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, errOut, code := s.runCommand(t, "completion", shell)
		if code != 0 || !strings.Contains(out, "pilotfish-agent") {
			t.Errorf("%s: code %d, %s", shell, code, errOut)
		}
	}
	if out, errOut, code := s.runCommand(t, "__complete", "bootstrap", "--val"); code != 0 || !strings.Contains(out, "--validate") {
		t.Errorf("completing a flag: code %d, %s%s", code, out, errOut)
	}
}

func TestCommandUsageErrors(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.6.3")
	for line, want := range map[string]string{
		"config -o xml":                             "table, json or yaml",
		"upgrade":                                   "--envoy-path",
		"upgrade --envoy-path x --way by-magic":     "--way",
		"upgrade --envoy-path x --keep -1s":         "--keep -1s",
		"upgrade --envoy-path x --ready-within -1s": "--ready-within -1s",
		"bootstrap -o table":                        "json or yaml",
		"bootstrap --grpc --validate":               "one of them",
		"config ztunnel":                            "does not use Envoy",
		"bootstrap a b":                             "--help",
	} {
		if out, errOut, code := s.runCommand(t, strings.Fields(line)...); code != 2 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %s%s; want 2 and %q", line, code, out, errOut, want)
		}
	}
}

func TestBootstrapIsCheckedOnceForEachContent(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	asked := filepath.Join(dir, "asked")
	program := filepath.Join(dir, "envoy")
	testenv.Program(t, program, []byte("#!/bin/sh\necho >>"+asked+"\n"))
	c := resolve(t, env())
	c.Bootstrap.Override, c.Bootstrap.OverrideFile = []byte("{}"), "own.yaml"
	file := filepath.Join(dir, "bootstrap.json")
	for i, step := range []struct {
		text  string
		level string
		asked int
	}{{"a", "info", 1}, {"a", "info", 1}, {"b", "info", 2}, {"b", "debug", 3}, {"b", "debug", 3}} {
		if err := os.WriteFile(file, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		binary := envoy.Binary{Path: program, Version: envoy.MinimumVersion}
		if err := checkBootstrapOnce(t.Context(), c, binary, envoy.Options{ConfigPath: file, LogLevel: step.level}, ""); err != nil {
			t.Fatal(err)
		}
		if seen, _ := os.ReadFile(asked); len(seen) != step.asked {
			t.Errorf("step %d: Envoy validated %d times, want %d", i+1, len(seen), step.asked)
		}
	}
}
