package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// cniAttacks are attempts to mislead the CNI plugin and its node agent.
var cniAttacks = []attack{
	{
		name: "a CNI policy file that another user can change exempts a sandbox", position: localUser,
		limit: "the sandbox does not start", service: "sandboxes start captured by root's policy file",
		run: changeCNIPolicy,
	},
	{
		name: "CNI configurations that are malformed, nested or endless", position: localUser,
		limit: "a failure within a minute, and 256 MiB of memory", service: "sandboxes start",
		run: sendHostileCNIConfigurations,
	},
	{
		name: "symbolic links in the place of the CNI plugin's files", position: localUser,
		limit: "no file outside the CNI directories changes", service: "the plugin is installed",
		run: plantLinksForCNIInstall,
	},
}

const captureAll = "default: capture\n"

func changeCNIPolicy(t *testing.T) {
	const stranger = 4242
	trusted := newCNISandbox(t)
	if answer := trusted.add(t, strings.NewReader(trusted.config(t, trusted.writePolicy(t, captureAll)))); answer.err != nil || !trusted.isCaptured(t) {
		t.Fatalf("by root's policy file: captured %v, %v: %s", trusted.isCaptured(t), answer.err, answer.out)
	}
	for name, prepare := range map[string]func(dir, policy string) (string, error){
		"the file is another user's": func(_, policy string) (string, error) { return policy, os.Chown(policy, stranger, 0) },
		"its group may write":        func(_, policy string) (string, error) { return policy, os.Chmod(policy, 0o664) },
		"others may write":           func(_, policy string) (string, error) { return policy, os.Chmod(policy, 0o646) },
		"the directory is another user's": func(dir, policy string) (string, error) {
			return policy, os.Chown(dir, stranger, 0)
		},
		"a link is another user's": func(dir, policy string) (string, error) {
			link := filepath.Join(dir, "link")
			return link, errors.Join(os.Symlink(policy, link), os.Lchown(link, stranger, 0))
		},
	} {
		s := newCNISandbox(t)
		policy := s.writePolicy(t, "default: skip\n")
		policy, err := prepare(filepath.Dir(policy), policy)
		if err != nil {
			t.Fatal(err)
		}
		answer := s.add(t, strings.NewReader(s.config(t, policy)))
		if answer.err == nil || !strings.Contains(answer.out, "chmod go-w") {
			t.Errorf("%s: the sandbox starts, captured: %v: %s", name, s.isCaptured(t), answer.out)
		}
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func sendHostileCNIConfigurations(t *testing.T) {
	s := newCNISandbox(t)
	config := s.config(t, s.writePolicy(t, captureAll))
	with := func(field string) string { return strings.Replace(config, "{", "{"+field+",", 1) }
	deep := strings.Repeat("[", 1_000_000)
	for name, stdin := range map[string]io.Reader{
		"nothing":                  strings.NewReader(""),
		"no JSON":                  bytes.NewReader([]byte{0xff, 0, '{', '"'}),
		"a list":                   strings.NewReader("[1,2,3]"),
		"cut off":                  strings.NewReader(config[:len(config)/2]),
		"deeply nested":            strings.NewReader(with(`"x":` + deep)),
		"a nested previous result": strings.NewReader(with(`"prevResult":{"interfaces":` + deep + `}`)),
		"a field of another type":  strings.NewReader(with(`"proxy_listen_port":{"a":1}`)),
		"endless":                  zeros{},
		"an endless text":          io.MultiReader(strings.NewReader(`{"cniVersion":"1.0.0","name":"`), zeros{}),
	} {
		began := time.Now()
		answer := s.add(t, stdin)
		switch {
		case answer.err == nil || !strings.Contains(answer.out, `"code"`):
			t.Errorf("%s: %v: %s", name, answer.err, answer.out)
		case time.Since(began) > time.Minute || answer.memory > 256<<20:
			t.Errorf("%s: %v and %d MiB", name, time.Since(began), answer.memory>>20)
		case s.isCaptured(t):
			t.Errorf("%s: the namespace has rules", name)
		}
	}
	if answer := s.add(t, strings.NewReader(config)); answer.err != nil || !s.isCaptured(t) {
		t.Errorf("afterwards: captured %v, %v: %s", s.isCaptured(t), answer.err, answer.out)
	}
}

func plantLinksForCNIInstall(t *testing.T) {
	node := newCNINode(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o640); err != nil {
		t.Fatal(err)
	}
	written := []string{"bin/pilotfish-cni", "run/istio-cni-kubeconfig"}
	plant := func() {
		for _, name := range written {
			if err := errors.Join(os.RemoveAll(node.path(name)), os.Symlink(victim, node.path(name))); err != nil {
				t.Fatal(err)
			}
		}
	}
	plant()
	node.start(t)
	for range 2 {
		testenv.Eventually(t, "the plugin is installed", func() error { return node.isInstalled(written) })
		plant() // while the agent watches
	}
	testenv.Eventually(t, "the plugin is installed again", func() error { return node.isInstalled(written) })
	text, err := os.ReadFile(victim)
	info, statErr := os.Stat(victim)
	if err != nil || statErr != nil || string(text) != "untouched" || info.Mode().Perm() != 0o640 {
		t.Errorf("the file that the links lead to is %.40q of mode %v, %v, %v", text, info.Mode(), err, statErr)
	}
}

// isInstalled returns an error while a file that the installer writes is not a regular one.
func (n *cniNode) isInstalled(written []string) error {
	text, err := os.ReadFile(n.path("net.d/10-pods.conflist"))
	if err != nil || !strings.Contains(string(text), "pilotfish-cni") {
		return fmt.Errorf("the list of plugins is %s, %v", text, err)
	}
	for _, name := range written {
		if info, err := os.Lstat(n.path(name)); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s: %v, %v", name, info, err)
		}
	}
	return nil
}

// cniNode has the directories of a node that the plugin is installed on.
type cniNode struct{ dir string }

func newCNINode(t *testing.T) *cniNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni") // short, for the socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &cniNode{dir: dir}
	for _, dir := range []string{"bin", "net.d", "results", "run", "sa"} {
		if err := os.Mkdir(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const server = "{name: c, cluster: {server: 'http://127.0.0.1:1'}}" // nothing listens there
	for name, text := range map[string]string{
		"net.d/10-pods.conflist": `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}`,
		"sa/token":               "token",
		"sa/kubeconfig": "{apiVersion: v1, kind: Config, clusters: [" + server + "], contexts: [{name: c, context: {cluster: c, user: u}}], " +
			"users: [{name: u, user: {token: token}}], current-context: c}",
	} {
		if err := os.WriteFile(n.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n *cniNode) path(name string) string { return filepath.Join(n.dir, name) }

// start runs the node agent until the test ends, in a network namespace of its own, where its ports are free.
func (n *cniNode) start(t *testing.T) {
	t.Helper()
	testns.New(t).Start(t, exec.Command(testenv.Bin(t, "pilotfish-cni-install"),
		"--cni-bin-source-dir", filepath.Dir(testenv.Bin(t, "pilotfish-cni")), "--mounted-cni-bin-dir", n.path("bin"),
		"--mounted-cni-net-dir", n.path("net.d"), "--mounted-cni-results-dir", n.path("results"), "--cni-agent-run-dir", n.path("run"),
		"--kubeconfig", n.path("sa/kubeconfig"), "--service-account-dir", n.path("sa"), "--skip-tls-verify",
		"--kubernetes-node-name", "node", "--host-network-namespace", "/proc/self/ns/net"))
}
