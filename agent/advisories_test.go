package agent

import (
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestStartWarnsOfVulnerableEnvoy(t *testing.T) {
	for name, c := range map[string]struct {
		address, version, env string
		lines                 int
	}{
		"an affected release": {"127.155.13.1", testenv.OldEnvoyVersion, "", 1},
		"silenced":            {"127.155.13.2", testenv.OldEnvoyVersion, "ENVOY_ADVISORY_WARNING=false", 0},
		"the newest release":  {"127.155.13.3", testenv.EnvoyVersion, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, c.address)
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, c.version))
			s.env = append(s.env, strings.Fields(c.env)...)
			r := s.startReady(t)
			warnings := linesWith(r.out.String(), "known vulnerabilities")
			if len(warnings) != c.lines {
				t.Fatalf("%d warnings, want %d: %q", len(warnings), c.lines, warnings)
			}
			for _, warning := range warnings {
				for _, want := range []string{"version=1.36.4", "CVE-2026-47774: clients exhaust memory", "use Envoy 1.36.11 or a later release of 1.36"} {
					if !strings.Contains(warning, want) {
						t.Errorf("the warning lacks %q: %s", want, warning)
					}
				}
			}
			r.signal(syscall.SIGTERM)
			r.checkExit(0)
		})
	}
}

func TestUpgradeWarnsOfVulnerableEnvoy(t *testing.T) {
	r := upgradable(t, "127.155.13.4", testenv.EnvoyVersion)
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", HandOver); u.waitExit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	if warnings := linesWith(r.out.String(), "known vulnerabilities"); len(warnings) != 1 {
		t.Errorf("%d warnings, want 1: %q", len(warnings), warnings)
	}
}

func linesWith(text, part string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}
