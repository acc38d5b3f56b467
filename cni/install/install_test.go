package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	bridgeList = `{
  "cniVersion": "1.0.0", "name": "podnet", "unknown": 12345678901234567890,
  "plugins": [ {"type": "bridge", "bridge": "cni0"}, {"type": "portmap", "capabilities": {"portMappings": true}} ]
}
`
	bridgeSingle = `{"cniVersion": "0.4.0", "name": "podnet", "type": "bridge", "bridge": "cni0"}`
)

// node is a node's file system.
type node struct {
	t      testing.TB
	root   string
	config Config
}

func newNode(t testing.TB, file, content string) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir()}
	n.write("image/pilotfish-cni", "the plugin")
	n.write("image/tombstone", "the tombstone")
	n.write("sa/token", "token-1\n")
	n.write("sa/ca.crt", "-----CA-----")
	for _, dir := range []string{"bin", "bin2", "net.d", "run"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if file != "" {
		n.write("net.d/"+file, content)
	}
	n.config = Config{
		Binary: n.path("image/pilotfish-cni"), Tombstone: n.path("image/tombstone"),
		BinDirs: []string{n.path("bin"), n.path("bin2")},
		ConfDir: n.path("net.d"), Plugin: map[string]any{"cni_agent_run_dir": "/var/run/istio-cni", "exclude_namespaces": []string{"kube-system"}},
		Kubeconfig: n.path("run/kubeconfig"), Server: "https://10.0.0.1:443",
		TokenFile: n.path("sa/token"), CAFile: n.path("sa/ca.crt"), Results: n.path("results"),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.root, name) }

func (n *node) write(name, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) installer(change ...func(*Config)) *Installer {
	n.t.Helper()
	c := n.config
	for _, f := range change {
		f(&c)
	}
	in, err := New(c)
	if err != nil {
		n.t.Fatal(err)
	}
	return in
}

func (n *node) install(change ...func(*Config)) *Installer {
	n.t.Helper()
	in := n.installer(change...)
	if _, err := in.Install(); err != nil {
		n.t.Fatal(err)
	}
	return in
}

// files returns the names, modes and contents of all files on the node except the undo log.
func (n *node) files() string {
	n.t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(n.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() != "podnet" || d.Name() == undoLogName {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content []byte
		if !d.IsDir() {
			content, err = os.ReadFile(path)
		}
		fmt.Fprintf(&all, "%s %v %q\n", strings.TrimPrefix(path, n.root), info.Mode(), content)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all.String()
}

// chain returns the plugins that a runtime runs for a new pod: those of the first configuration, as libcni reads it.
func (n *node) chain() []string {
	n.t.Helper()
	names, err := libcni.ConfFiles(n.config.ConfDir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(names) == 0 {
		n.t.Fatalf("there is no CNI configuration (%v)", err)
	}
	if strings.HasSuffix(names[0], ".conflist") {
		list, err := libcni.ConfListFromFile(names[0])
		if err != nil {
			n.t.Fatal(err)
		}
		var types []string
		for _, p := range list.Plugins {
			types = append(types, p.Network.Type)
		}
		return types
	}
	//lint:ignore SA1019 runtimes read files of this form still
	conf, err := libcni.ConfFromFile(names[0])
	if err != nil {
		n.t.Fatal(err)
	}
	return []string{conf.Network.Type}
}

func TestNamedConfigurationIsFoundInEitherForm(t *testing.T) {
	for _, name := range []string{"10-podnet.conf", "10-podnet.conflist"} {
		n := newNode(t, "10-podnet.conf", bridgeSingle)
		in := n.installer(func(c *Config) { c.ConfName = name })
		for range 2 { // the second installation finds the result of the first
			if _, err := in.Install(); err != nil || !in.Health().OK {
				t.Errorf("%s: %v", name, err)
			}
			n.wantChain("bridge", PluginType)
		}
		if err := in.Uninstall(); err != nil {
			t.Error(err)
		}
		n.wantChain("bridge")
	}
}

func (n *node) wantChain(want ...string) {
	n.t.Helper()
	if got := n.chain(); strings.Join(got, " ") != strings.Join(want, " ") {
		n.t.Errorf("a runtime runs the plugins %v for new pods, want %v", got, want)
	}
}

// ways are the modes of installation, with the plugins that a runtime runs before and after.
var ways = []struct {
	name, file, content string
	mode                Mode
	before, after       []string
}{
	{"list", "10-podnet.conflist", bridgeList, Chained, []string{"bridge", "portmap"}, []string{"bridge", "portmap", "pilotfish-cni"}},
	{"single", "10-podnet.conf", bridgeSingle, Chained, []string{"bridge"}, []string{"bridge", "pilotfish-cni"}},
	{"drop-in", "10-podnet.conflist", bridgeList, DropIn, []string{"bridge", "portmap"}, []string{"bridge", "portmap", "pilotfish-cni"}},
}

func TestInstallAndUninstallLeaveTheNodeAsItWas(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			n := newNode(t, w.file, w.content)
			before := n.files()
			n.wantChain(w.before...)
			in := n.install(func(c *Config) { c.Mode = w.mode })
			n.wantChain(w.after...)
			if !in.Health().OK {
				t.Error(in.Health().Reason)
			}
			after := n.files()
			if changed, err := n.installer(func(c *Config) { c.Mode = w.mode }).Install(); err != nil || changed || n.files() != after {
				t.Errorf("a second installation changes files (%v, %v)", changed, err)
			}
			if err := in.Uninstall(); err != nil {
				t.Fatal(err)
			}
			n.wantChain(w.before...)
			if now := n.files(); now != before {
				t.Errorf("left\n%s\nwas\n%s", now, before)
			}
		})
	}
}

func TestOtherContentOfTheConfigurationIsPreserved(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	n.install()
	text, err := os.ReadFile(n.path("net.d/10-podnet.conflist"))
	if err != nil || !strings.Contains(string(text), "12345678901234567890") || !strings.Contains(string(text), "portMappings") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestUninstallPreservesLaterForeignChanges(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	in := n.install()
	text, _ := os.ReadFile(n.path("net.d/10-podnet.conflist"))
	n.write("net.d/10-podnet.conflist", strings.Replace(string(text), "cni0", "cni7", 1))
	if err := in.Uninstall(); err != nil {
		t.Fatal(err)
	}
	n.wantChain("bridge", "portmap")
	text, _ = os.ReadFile(n.path("net.d/10-podnet.conflist"))
	if !strings.Contains(string(text), "cni7") {
		t.Errorf("%s", text)
	}
}

func TestUninstallWithoutTheUndoLogRemovesThePlugin(t *testing.T) {
	for name, log := range map[string]string{"lost": "", "broken": "{", "hostile": `{"entries":[{"file":"../../../etc/passwd"}]}`} {
		n := newNode(t, "10-podnet.conflist", bridgeList)
		in := n.install()
		n.write("net.d/"+undoLogName, log)
		if log == "" {
			_ = os.Remove(n.path("net.d/" + undoLogName))
		}
		if err := in.Uninstall(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n.wantChain("bridge", "portmap")
	}
}

func TestInstallWaitsForThePrimaryPlugin(t *testing.T) {
	n := newNode(t, "", "")
	in := n.installer()
	if _, err := in.Install(); !errors.Is(err, errNoNetwork) || in.Health().OK {
		t.Errorf("%v, %+v", err, in.Health())
	}
	if _, err := os.Stat(n.path("bin/pilotfish-cni")); err != nil {
		t.Error("the binary must be installed before the primary plugin has written its configuration:", err)
	}
	n.write("net.d/10-podnet.conflist", bridgeList)
	n.install()
	n.wantChain("bridge", "portmap", "pilotfish-cni")
}

func TestModesReplaceEachOther(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	for _, mode := range []Mode{Chained, DropIn, Chained, DropIn} {
		n.install(func(c *Config) { c.Mode = mode })
		n.wantChain("bridge", "portmap", "pilotfish-cni")
	}
	if err := n.installer().Uninstall(); err != nil {
		t.Fatal(err)
	}
	n.wantChain("bridge", "portmap")
}

func TestDropInIsRefusedIfTheRuntimeWouldNotReadIt(t *testing.T) {
	inlined := strings.Replace(bridgeList, `"plugins"`, `"loadOnlyInlinedPlugins": true, "plugins"`, 1)
	for file, content := range map[string]string{"a.conf": bridgeSingle, "b.conflist": inlined, "c.conflist": strings.Replace(bridgeList, "podnet", "../x", 1)} {
		n := newNode(t, file, content)
		before := n.files()
		if _, err := n.installer(func(c *Config) { c.Mode = DropIn }).Install(); err == nil || !strings.Contains(err.Error(), "use mode chained") {
			t.Errorf("%s: %v", file, err)
		}
		if n.files() != before {
			t.Errorf("%s: something was left", file)
		}
	}
}

func TestStandaloneModeWritesASeparateFile(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	before := n.files()
	in := n.install(func(c *Config) { c.Mode = Standalone })
	//lint:ignore SA1019 meta plugins read files of this form still
	conf, err := libcni.ConfFromFile(n.path("net.d/" + defaultStandalone))
	if err != nil || conf.Network.Type != PluginType {
		t.Errorf("%v %v", conf, err)
	}
	n.wantChain("bridge", "portmap")
	if err := in.Uninstall(); err != nil || n.files() != before {
		t.Errorf("%v\n%s", err, n.files())
	}
}

func TestIncompleteKubeconfigIsNotWritten(t *testing.T) {
	for words, change := range map[string]func(*Config){
		"KUBERNETES_SERVICE_HOST": func(c *Config) { c.Server = "" },
		"token":                   func(c *Config) { c.TokenFile = "/nowhere" },
		"kube-ca-file":            func(c *Config) { c.CAFile = "/nowhere" },
	} {
		n := newNode(t, "10-podnet.conflist", bridgeList)
		before := n.files()
		if _, err := n.installer(change).Install(); err == nil || !strings.Contains(err.Error(), words) || n.files() != before {
			t.Errorf("%s: %v", words, err)
		}
	}
}

func TestKubeconfigIsSecretAndFollowsTheToken(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	in := n.install()
	info, err := os.Stat(n.path("run/kubeconfig"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	n.write("sa/token", "token-2")
	if changed, err := in.Install(); !changed || err != nil {
		t.Errorf("%v %v", changed, err)
	}
	c, err := kube.Load(n.path("run/kubeconfig"))
	if err != nil || c.Token != "token-2" || c.Server != "https://10.0.0.1:443" || string(c.CA) != "-----CA-----" {
		t.Errorf("%+v %v", c, err)
	}
	if !in.Health().OK {
		t.Error("the installer is not ready after the token was renewed")
	}
}

func TestInvalidConfigurationChangesNoFile(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	before := n.files()
	for words, change := range map[string]func(*Config){
		"mode":      func(c *Config) { c.Mode = "sideways" },
		"net-dir":   func(c *Config) { c.ConfDir = "" },
		"bin-dir":   func(c *Config) { c.BinDirs = nil },
		"is a path": func(c *Config) { c.ConfName = "../x" },
	} {
		c := n.config
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", words, err)
		}
	}
	if n.files() != before {
		t.Error("a file changed")
	}
}

func TestTombstoneReplacesTheBinaryWhileSandboxesReferenceIt(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	in := n.install()
	n.write("results/podnet-c1-eth0", `{"kind":"cniCacheV1","containerId":"c1","config":"eyJwbHVnaW5zIjpbeyJ0eXBlIjoicGlsb3RmaXNoLWNuaSJ9XX0="}`)
	n.write("results/podnet-c2-eth0", `{"kind":"cniCacheV1","containerId":"c2","config":"eyJwbHVnaW5zIjpbeyJ0eXBlIjoiYnJpZGdlIn1dfQ=="}`)
	if err := in.Uninstall(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(n.path("bin/pilotfish-cni"))
	if err != nil || string(text) != "the tombstone" {
		t.Errorf("%s %v", text, err)
	}
	n.install()
	if text, _ := os.ReadFile(n.path("bin/pilotfish-cni")); string(text) != "the plugin" {
		t.Errorf("configuration after a new installation: %s", text)
	}
}

func FuzzNetwork(f *testing.F) {
	f.Add([]byte(bridgeList))
	f.Add([]byte(bridgeSingle))
	f.Add([]byte(`{"name":"a","plugins":[{"type":"pilotfish-cni"}]}`))
	entry := map[string]any{"type": PluginType}
	f.Fuzz(func(t *testing.T, content []byte) {
		n, err := parseNetwork("x", content)
		if err != nil {
			return
		}
		text, err := n.appendPlugin(entry)
		if err != nil {
			return
		}
		again, err := parseNetwork("x", text)
		if err != nil || !again.hasPlugin(entry) || strings.Join(again.types(), ",") != strings.Join(n.types(), ",") {
			t.Fatalf("%q became %q (%v)", content, text, err)
		}
		without, err := again.removePlugin()
		if err != nil {
			t.Fatal(err)
		}
		if last, err := parseNetwork("x", without); err != nil || last.pluginEntry() != nil {
			t.Fatalf("%q keeps the plugin (%v)", without, err)
		}
	})
}

func TestSymlinkedConfigurationIsChangedAtItsTarget(t *testing.T) {
	n := newNode(t, "", "")
	n.write("elsewhere/podnet.json", bridgeList)
	link := n.path("net.d/10-podnet.conflist")
	if err := os.Symlink("../elsewhere/podnet.json", link); err != nil {
		t.Fatal(err)
	}
	in := n.installer()
	if _, err := in.Install(); err != nil {
		t.Fatal(err)
	}
	isLink := func() {
		t.Helper()
		if to, err := os.Readlink(link); err != nil || to != "../elsewhere/podnet.json" {
			t.Errorf("the symbolic link's target is %q: %v", to, err)
		}
	}
	isLink()
	if text, err := os.ReadFile(n.path("elsewhere/podnet.json")); err != nil || !strings.Contains(string(text), PluginType) || !n.installed() {
		t.Errorf("the content of the target is %s, %v", text, err)
	}
	if changed, err := in.Install(); changed || err != nil {
		t.Errorf("a second installation changes files: %v, %v", changed, err)
	}
	if err := in.Uninstall(); err != nil {
		t.Fatal(err)
	}
	isLink()
	if text, err := os.ReadFile(n.path("elsewhere/podnet.json")); err != nil || string(text) != bridgeList {
		t.Errorf("the content after the uninstallation is %s, %v", text, err)
	}
	if left, _ := filepath.Glob(n.path("elsewhere/.*")); len(left) > 0 {
		t.Errorf("remaining files: %v", left)
	}
}
