package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/cni/install"
	"github.com/pilotfish-mesh/pilotfish/cni/repair"
)

// testTimeout is the timeout of operations that must fail in a test.
const testTimeout = 3 * time.Second

func resolve(t *testing.T, env map[string]string, args ...string) (*settings, error) {
	t.Helper()
	s := &settings{lookup: func(name string) (string, bool) { v, set := env[name]; return v, set }}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.register(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return s, s.resolve(f)
}

func TestFlagsOverrideEnvironmentVariables(t *testing.T) {
	s, err := resolve(t, map[string]string{"CNI_CONF_NAME": "from-env", "REPAIR_DELETE_PODS": "true", "EXCLUDE_NAMESPACES": "a,b", "NODE_NAME": "n1"},
		"--cni-conf-name=from-flag")
	if err != nil {
		t.Fatal(err)
	}
	if s.confName != "from-flag" || s.repairMode != repair.Delete || strings.Join(s.excludeNamespaces, " ") != "a b" || s.node != "n1" {
		t.Errorf("%+v", s)
	}
}

func TestModesFollowTheFlagsOfIstiosInstaller(t *testing.T) {
	for _, c := range []struct {
		args   string
		mode   install.Mode
		repair repair.Mode
	}{
		{"", install.Chained, repair.Repair},
		{"--chained-cni-plugin=false", install.Standalone, repair.Repair},
		{"--cni-conf-mode=drop-in", install.DropIn, repair.Repair},
		{"--repair-enabled=false --repair-delete-pods", install.Chained, repair.Watch},
		{"--repair-label-pods", install.Chained, repair.Label},
		{"--repair-label-pods --repair-delete-pods", install.Chained, repair.Delete},
		{"--repair-repair-pods --repair-delete-pods", install.Chained, repair.Repair},
		{"--repair-repair-pods=false", install.Chained, repair.Watch},
	} {
		s, err := resolve(t, nil, strings.Fields(c.args)...)
		if err != nil || s.mode != c.mode || s.repairMode != c.repair {
			t.Errorf("%q: %v %v %v", c.args, s.mode, s.repairMode, err)
		}
	}
}

func TestAllSettingsErrorsAreReportedTogether(t *testing.T) {
	_, err := resolve(t, map[string]string{"MONITORING_PORT": "70000"}, "--ipv6=maybe", "--log-level=loud", "--cni-agent-run-dir=run",
		"--force-iptables-binary=x", "--check-interval=1ms", "--readiness-address=8000")
	for _, name := range []string{"MONITORING_PORT", "ipv6", "log-level", "cni-agent-run-dir", "force-iptables-binary", "check-interval", "readiness-address"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not contain %s: %v", name, err)
		}
	}
}

func TestIstioScopedLogLevelsAreAccepted(t *testing.T) {
	s, err := resolve(t, map[string]string{"LOG_LEVEL": "default:debug,cni:info"})
	if err != nil || s.logLevel != "debug" {
		t.Errorf("%v %v", s, err)
	}
}
