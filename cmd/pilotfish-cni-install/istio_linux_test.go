package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// chartVariables are the variables that Istio's chart sets with its default values, and some that users add.
var chartVariables = map[string]string{
	"CURRENT_AGENT_VERSION": "1.31.0", "AMBIENT_ENABLED": "false", "AMBIENT_DNS_CAPTURE": "true", "AMBIENT_IPV6": "true",
	"AMBIENT_ENABLEMENT_SELECTOR":            "- podSelector:\n    matchLabels: {istio.io/dataplane-mode: ambient}",
	"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true", "ENABLE_AMBIENT_DETECTION_RETRY": "false", "ISTIO_OWNED_CNI_CONFIG": "false",
	"CHAINED_CNI_PLUGIN": "true", "EXCLUDE_NAMESPACES": "kube-system", "REPAIR_ENABLED": "true", "REPAIR_LABEL_PODS": "false",
	"REPAIR_DELETE_PODS": "false", "REPAIR_REPAIR_PODS": "true", "REPAIR_INIT_CONTAINER_NAME": "istio-validation",
	"REPAIR_BROKEN_POD_LABEL_KEY": "cni.istio.io/uninitialized", "REPAIR_BROKEN_POD_LABEL_VALUE": "true", "NATIVE_NFTABLES": "false",
	"REPAIR_NODE_NAME": "n1", "REPAIR_RUN_AS_DAEMON": "true", "REPAIR_SIDECAR_ANNOTATION": "sidecar.istio.io/status",
	"ALLOW_SWITCH_TO_HOST_NS": "true", "POD_NAME": "istio-cni-node-x",
}

func TestIstiosChartStartsTheAgentByItsName(t *testing.T) {
	h := newHost(t)
	h.api.SetObject(strings.Replace(daemonSet, "pilotfish-cni-node", "istio-cni-node", 1), `{"metadata":{"name":"istio-cni-node"}}`)
	for name, value := range chartVariables {
		h.env[name] = value
	}
	program := h.path(istioName)
	if err := os.Symlink(testenv.Bin(t, "pilotfish-cni-install"), program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--log_output_level=default:info,cni-agent:debug", "--log_as_json")
	for name, value := range h.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stderr = h.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	h.ready()
	testenv.Eventually(t, "the daemon set is found", func() error {
		if !strings.Contains(h.log.String(), "found this agent's DaemonSet") {
			return os.ErrNotExist
		}
		return nil
	})
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v:\n%s", err, h.log)
	}
	for text := range strings.Lines(h.log.String()) {
		var line struct{ Level, Time, Msg string }
		if err := json.Unmarshal([]byte(text), &line); err != nil || line.Level != strings.ToLower(line.Level) || line.Msg == "" {
			t.Errorf("not a line of JSON in Istio's form: %s", text)
		}
		if strings.Contains(line.Msg, "has no effect") {
			t.Errorf("the chart's defaults cause a warning: %s", line.Msg)
		}
	}
}

func TestFunctionsOfIstiosAgentAreRefusedOrWarnedAbout(t *testing.T) {
	if _, err := resolve(t, map[string]string{"AMBIENT_ENABLED": "true"}); err == nil || !strings.Contains(err.Error(), "ambient.enabled=false") {
		t.Errorf("ambient mode: error %v", err)
	}
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{map[string]string{"ISTIO_OWNED_CNI_CONFIG": "true"}, nil, "ISTIO_OWNED_CNI_CONFIG"},
		{map[string]string{"REPAIR_LABEL_SELECTORS": "app=x"}, nil, "all pods of its node"},
		{nil, []string{"--cni-network-config={}"}, "cni-network-config"},
		{nil, []string{"--cni-conf-group-read"}, "cni-conf-group-read"},
		{nil, []string{"--log_target=/var/log/x"}, "log_target"},
		{nil, []string{"--log_target=stdout", "--ambient-ipv6", "--vklog=3", "--repair-init-container-exit-code=126"}, ""},
	} {
		s, err := resolve(t, c.env, c.args...)
		if err != nil {
			t.Errorf("%v %v: %v", c.env, c.args, err)
			continue
		}
		if got := strings.Join(s.warnings, "\n"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v %v: warnings %q, want %q", c.env, c.args, got, c.want)
		}
	}
}

func TestLogLevelIsThatOfTheAgentsScope(t *testing.T) {
	for text, want := range map[string]string{
		"warn": "warn", "default:warn": "warn", "default:warn,cni-agent:debug": "debug", "all:error": "error", "default:info,cni-plugin:debug": "info",
		"default:fatal": "error",
	} {
		if s, err := resolve(t, nil, "--log_output_level="+text); err != nil || s.logLevel != want {
			t.Errorf("%s: %q, %v, want %s", text, s.logLevel, err, want)
		}
	}
}

// flagConstant and flagName match the names of flags in Istio's source.
var (
	flagConstant = regexp.MustCompile(`register(?:String|Boolean|Integer)Parameter\(constants\.(\w+),`)
	flagName     = regexp.MustCompile(`(?m)^\s*(\w+)\s*=\s*"([a-z0-9-]+)"`)
)

func TestEveryFlagOfIstiosAgentIsKnown(t *testing.T) {
	dir := testenv.IstioSource(t)
	root, err := os.ReadFile(filepath.Join(dir, "cni", "pkg", "cmd", "root.go"))
	if err != nil {
		t.Fatal(err)
	}
	constants, err := os.ReadFile(filepath.Join(dir, "cni", "pkg", "constants", "constants.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, m := range flagName.FindAllStringSubmatch(string(constants), -1) {
		names[m[1]] = m[2]
	}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	new(settings).register(f)
	found := flagConstant.FindAllStringSubmatch(string(root), -1)
	for _, m := range found {
		if name := names[m[1]]; name == "" || f.Lookup(name) == nil {
			t.Errorf("Istio's agent has the flag %s (%q), which is unknown here", m[1], name)
		}
	}
	if len(found) < 25 {
		t.Errorf("only %d flags were found in Istio's source", len(found))
	}
}
