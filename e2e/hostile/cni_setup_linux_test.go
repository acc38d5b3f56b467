package hostile

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// cniSandbox is a pod's network namespace on a node without Kubernetes, for which a policy file decides.
type cniSandbox struct {
	space *testns.Namespace
	dir   string
}

func newCNISandbox(t *testing.T) *cniSandbox {
	t.Helper()
	return &cniSandbox{space: testns.New(t), dir: t.TempDir()}
}

// writePolicy writes the policy file into a directory of its own.
func (s *cniSandbox) writePolicy(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, "policy", "policy.yaml")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// config is the plugin's configuration as a runtime writes it.
func (s *cniSandbox) config(t *testing.T, policy string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "pods", "type": "pilotfish-cni", "cni_agent_run_dir": s.dir, "policy_file": policy,
		"prevResult": map[string]any{"cniVersion": "1.0.0", "interfaces": []any{}, "ips": []any{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cniAnswer is the outcome of one run of the plugin.
type cniAnswer struct {
	err    error // of the process
	out    string
	memory int64 // the most that it had resident, in bytes
}

// add runs the built plugin's ADD for the sandbox.
func (s *cniSandbox) add(t *testing.T, stdin io.Reader) cniAnswer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Bin(t, "pilotfish-cni"))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=sandbox", "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(cmd.Path),
		fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), int(s.space.Handle)),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1",
	}
	cmd.Stdin = stdin
	out, err := cmd.Output()
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cniAnswer{err: err, out: string(out), memory: usage.Maxrss << 10}
}

// isCaptured reports whether the namespace has redirection rules.
func (s *cniSandbox) isCaptured(t *testing.T) bool {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.space.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	return len(tables) > 0
}
