package examples

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// unit reads a unit file's settings; a name may have several values.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	settings := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

func TestUnitStartsAndRestartsTheAgent(t *testing.T) {
	u := unit(t, filepath.Join("systemd", "pilotfish-agent.service"))
	for name, want := range map[string]string{
		"Type":       "notify",     // the unit is ready when the proxy is
		"KillMode":   "mixed",      // a signal to Envoy would interrupt the drain
		"Restart":    "on-failure", // exit code 0 is a requested stop
		"UMask":      "0077",
		"User":       "pilotfish",
		"OOMPolicy":  "continue", // the agent reports and restarts a killed Envoy
		"ExecReload": "/bin/kill -USR1 $MAINPID",
		// The exit codes for invalid configuration and a missing Envoy: see `proxy --help`.
		"RestartPreventExitStatus": "2 127",
	} {
		if got := u[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	// Otherwise a Go program that crashes, or that the watchdog kills, exits with code 2, and systemd does not restart
	// it.
	if !slices.Contains(u["Environment"], "GOTRACEBACK=crash") || !slices.Equal(u["LimitCORE"], []string{"0"}) {
		t.Errorf("a crash looks like wrong configuration, or writes keys into a core: Environment=%q LimitCORE=%q", u["Environment"], u["LimitCORE"])
	}
	for _, setting := range []string{"ENVOY_ADMIN_SOCKET=/run/pilotfish/admin.sock", "STATUS_PORT_USERS=own"} {
		if !slices.Contains(u["Environment"], setting) {
			t.Errorf("other users of the machine control the proxy: Environment=%q lacks %s", u["Environment"], setting)
		}
	}
	words := strings.Fields(strings.Join(u["ExecStart"], " "))
	if len(words) < 3 || words[0] != "/usr/bin/pilotfish-agent" {
		t.Fatalf("ExecStart=%q", words)
	}
	help, err := exec.Command(testenv.Bin(t, "pilotfish-agent"), words[1], "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, help)
	}
	for _, w := range words[2:] {
		if strings.HasPrefix(w, "--") && !strings.Contains(string(help), w+" ") {
			t.Errorf("ExecStart has %s, which the command does not know", w)
		}
	}
}
