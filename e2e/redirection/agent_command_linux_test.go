package redirection

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The agent executes pilotfish-iptables from its own directory or from PATH.
func TestAgentExecutesTheRedirectionProgram(t *testing.T) {
	agent, small := testenv.Bin(t, "pilotfish-agent"), testenv.Bin(t, "pilotfish-iptables")
	dir := t.TempDir()
	alone := filepath.Join(dir, "pilotfish-agent")
	data, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Program(t, alone, data)
	istioName := filepath.Join(dir, "istio-iptables")
	if err := os.Symlink(alone, istioName); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		path string
		fail string
	}{
		"same directory": {args: []string{agent, "iptables", "show", "--help"}, path: "/nowhere"},
		"in PATH":        {args: []string{alone, "iptables", "show", "--help"}, path: filepath.Dir(small)},
		"Istio's name":   {args: []string{istioName, "show", "--help"}, path: filepath.Dir(small)},
		"missing":        {args: []string{alone, "iptables", "show"}, path: "/nowhere", fail: "install it in the directory of pilotfish-agent"},
	} {
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Env = []string{"PATH=" + c.path}
		out, err := cmd.CombinedOutput()
		want := "pilotfish-iptables show"
		if c.fail != "" {
			want = c.fail
		}
		if (err != nil) != (c.fail != "") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s; want %q", name, err, out, want)
		}
	}
}
