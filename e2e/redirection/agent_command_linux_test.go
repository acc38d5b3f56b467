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
		want string
		fail bool
	}{
		"same directory":    {args: []string{agent, "iptables", "show", "--help"}, path: "/nowhere", want: "\n  pilotfish-agent iptables show [flags]\n"},
		"in PATH":           {args: []string{alone, "iptables", "show", "--help"}, path: filepath.Dir(small), want: "\n  pilotfish-agent iptables show [flags]\n"},
		"Istio's name":      {args: []string{istioName, "show", "--help"}, path: filepath.Dir(small), want: "\n  istio-iptables show [flags]\n"},
		"its own name":      {args: []string{small, "show", "--help"}, path: "/nowhere", want: "\n  pilotfish-iptables show -b"},
		"missing":           {args: []string{alone, "iptables", "show"}, path: "/nowhere", want: "install it in the directory of pilotfish-agent", fail: true},
		"error":             {args: []string{agent, "iptables", "show", "--outptu", "json"}, path: "/nowhere", want: "pilotfish-agent iptables: unknown flag: --outptu; did you mean --output? (see `pilotfish-agent iptables show --help`)\n", fail: true},
		"error in PATH":     {args: []string{alone, "iptables", "-p", "x"}, path: filepath.Dir(small), want: "pilotfish-agent iptables: ", fail: true},
		"error, Istio's":    {args: []string{istioName, "nonsense"}, path: filepath.Dir(small), want: "istio-iptables: unknown command \"nonsense\" for \"istio-iptables\" (see `istio-iptables --help`)\n", fail: true},
		"error of the name": {args: []string{small, "nonsense"}, path: "/nowhere", want: "pilotfish-iptables: unknown command \"nonsense\"", fail: true},
	} {
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Env = []string{"PATH=" + c.path}
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fail || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %s; want %q", name, err, out, c.want)
		}
	}
}
