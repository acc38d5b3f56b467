package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestPipeAtTheBinarysPathIsReplaced(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	path := n.path("bin/pilotfish-cni")
	if err := syscall.Mkfifo(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := n.installer().Install(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "the plugin" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestUnreadableFirstConfigurationIsReportedAsNotReady(t *testing.T) {
	for name, put := range map[string]func(n *node, path string) error{
		"link out of sight": func(n *node, path string) error { return os.Symlink("/nowhere/x.conflist", path) },
		"too large": func(n *node, path string) error {
			return os.WriteFile(path, []byte(`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"bridge","x":"`+strings.Repeat("x", maxConf)+`"}]}`), 0o644)
		},
		"half written":  func(n *node, path string) error { return os.WriteFile(path, []byte(`{"name":`), 0o644) },
		"more after it": func(n *node, path string) error { return os.WriteFile(path, []byte(bridgeList+"}"), 0o644) },
		"plugins elsewhere": func(n *node, path string) error {
			return os.WriteFile(path, []byte(`{"cniVersion":"1.1.0","name":"x"}`), 0o644)
		},
		"a single plugin": func(n *node, path string) error { return os.WriteFile(path, []byte(bridgeSingle), 0o644) },
		"pipe":            func(n *node, path string) error { return syscall.Mkfifo(path, 0o644) },
		"folder":          func(n *node, path string) error { return os.Mkdir(path, 0o755) },
	} {
		for _, mode := range []Mode{Chained, DropIn} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				n := newNode(t, "10-podnet.conflist", bridgeList)
				path := n.path("net.d/00-x.conflist")
				if err := put(n, path); err != nil {
					t.Fatal(err)
				}
				in := n.installer(func(c *Config) { c.Mode = mode })
				_, err := in.Install()
				if !errors.Is(err, errShadowed) || !strings.Contains(err.Error(), path) {
					t.Errorf("the error does not report the unreadable configuration: %v", err)
				}
				if h := in.Health(); h.OK {
					t.Error("ready")
				}
				if _, err := os.Stat(n.path("bin/pilotfish-cni")); err != nil {
					t.Error("the plugin's entry was rolled back:", err)
				}
				if err := os.Rename(path, n.path("net.d/99-x.conflist")); err != nil {
					t.Fatal(err)
				}
				if _, err := in.Install(); err != nil || !in.Health().OK {
					t.Errorf("an unreadable file that sorts after the primary's is reported: %v", err)
				}
			})
		}
	}
}

// Some container runtimes ignore a list in a .conf file and use the next configuration.
func TestListInAConfFileIsNotThePrimary(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	other := strings.Replace(bridgeList, "podnet", "x", 1)
	n.write("net.d/00-x.conf", other)
	in := n.installer()
	if _, err := in.Install(); !errors.Is(err, errShadowed) || !strings.Contains(err.Error(), "rename it") || in.Health().OK {
		t.Errorf("ready: %v, %v", in.Health().OK, err)
	}
	if text, err := os.ReadFile(n.path("net.d/00-x.conf")); err != nil || string(text) != other {
		t.Errorf("%q, %v", text, err)
	}
	if !n.installed() {
		t.Error("the configuration that such runtimes use does not contain the plugin")
	}
}

func TestRepeatedForeignChangesAreAConflict(t *testing.T) {
	for file, hint := range map[string]string{"run/kubeconfig": "cni-agent-run-dir", "bin/pilotfish-cni": "another node agent", "net.d/10-podnet.conflist": "istio-cni-node"} {
		t.Run(file, func(t *testing.T) {
			n := newNode(t, "10-podnet.conflist", bridgeList)
			out := &testenv.Buffer{}
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(out)
				}
			})
			var fought atomic.Int32
			in := n.run(func(c *Config) {
				c.Logger, c.OnConflict = slog.New(slog.NewTextHandler(out, nil)), func(string) { fought.Add(1) }
			})
			n.eventually("the install", func() bool { return n.installed() && in.Health().OK })
			want, _ := os.ReadFile(n.path(file))
			for round := range maxRepairs + 1 {
				n.write(file, foreignContent(t, want))
				n.eventually("the conflict report", func() bool { return int(fought.Load()) > round })
			}
			n.eventually("the warning", func() bool {
				return strings.Contains(out.String(), "repeatedly") && strings.Contains(out.String(), hint)
			})
			// During the backoff of a conflict, the plugin's entry is restored immediately if another program removes it.
			n.write("net.d/10-podnet.conflist", bridgeList)
			began := time.Now()
			n.eventually("the chain", n.installed)
			if wait := time.Since(began); wait > maxBackoff/2 {
				t.Errorf("pods started without redirection for %v", wait)
			}
		})
	}
}

// foreignContent returns the content that another program writes in place of ours. In a configuration it retains the plugin and
// appends another one.
func foreignContent(t *testing.T, ours []byte) string {
	var fields map[string]any
	if json.Unmarshal(ours, &fields) != nil || fields["plugins"] == nil {
		return "somebody else's"
	}
	fields["plugins"] = append(fields["plugins"].([]any), map[string]any{"type": "istio-cni"})
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestUnenforceableKubeconfigModeIsRefused(t *testing.T) {
	for _, mode := range []fs.FileMode{600, 0o400, 0o666, 0o622} {
		c := newNode(t, "", "").config
		c.KubeconfigMode = mode
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "0600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// A program with write access to the plugin directory replaces the temporary file with a symbolic link just before the
// rename. The installer detects the link and replaces it.
func TestLinkAtTheTemporaryFilesPathIsNotInstalled(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	n.write("victim", "untouched")
	binary := n.path("bin/pilotfish-cni")
	var attacked atomic.Bool
	in := n.installer(func(c *Config) {
		c.before = func(step, path string) error {
			if step != "rename" || path != binary || attacked.Load() {
				return nil
			}
			attacked.Store(true)
			temps, err := filepath.Glob(n.path("bin/" + staging + "*"))
			if err != nil || len(temps) != 1 {
				t.Errorf("temporary files: %q, %v", temps, err)
				return nil
			}
			return errors.Join(os.Remove(temps[0]), os.Symlink(n.path("victim"), temps[0]))
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	testenv.Eventually(t, "the plugin is installed", func() error {
		info, err := os.Lstat(binary)
		if err != nil {
			return err
		}
		if !attacked.Load() || !info.Mode().IsRegular() {
			return fmt.Errorf("the temporary file was replaced: %v; the installed file has mode %v", attacked.Load(), info.Mode())
		}
		return nil
	})
	stop()
	<-ended
	for path, want := range map[string]string{binary: "the plugin", n.path("victim"): "untouched"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s has %q, %v", path, text, err)
		}
	}
}
