package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// run runs the installer until the test ends.
func (n *node) run(change ...func(*Config)) *Installer {
	n.t.Helper()
	in := n.installer(append([]func(*Config){func(c *Config) { c.Settle = time.Millisecond }}, change...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = in.Run(ctx) }()
	n.t.Cleanup(func() { cancel(); <-done })
	return in
}

func (n *node) eventually(what string, check func() bool) {
	n.t.Helper()
	testenv.Eventually(n.t, what, func() error {
		if !check() {
			return errors.New("not yet")
		}
		return nil
	})
}

func (n *node) installed() bool {
	p, err := primary(n.config.ConfDir, "")
	return err == nil && p.pluginEntry() != nil
}

func TestRemovedFilesAreReinstalled(t *testing.T) {
	n := newNode(t, "", "")
	var results atomic.Value
	in := n.run(func(c *Config) { c.OnAttempt = func(r string) { results.Store(r) } })
	n.eventually("the wait for a primary plugin", func() bool { return strings.Contains(in.Health().Reason, errNoNetwork.Error()) })

	n.write("net.d/10-podnet.conflist", bridgeList)
	n.eventually("the chain after the primary's first start", func() bool { return n.installed() && in.Health().OK })

	n.write("net.d/05-new.conflist", strings.Replace(bridgeList, "podnet", "newnet", 1))
	n.eventually("the chain of a network that comes before", n.installed)

	for _, path := range []string{"bin/pilotfish-cni", "bin2/pilotfish-cni", "run/kubeconfig"} {
		if err := os.Remove(n.path(path)); err != nil {
			t.Fatal(err)
		}
		n.eventually(path, func() bool { _, err := os.Stat(n.path(path)); return err == nil })
	}
	n.write("bin/pilotfish-cni", "somebody else's")
	n.eventually("the binary", func() bool {
		text, _ := os.ReadFile(n.path("bin/pilotfish-cni"))
		return string(text) == "the plugin"
	})
	n.write("sa/token", "token-9")
	n.eventually("the renewed token", func() bool {
		text, _ := os.ReadFile(n.path("run/kubeconfig"))
		return strings.Contains(string(text), "token-9")
	})
	n.eventually("the result", func() bool { return results.Load() == "SUCCESS" }) // an attempt that read an incomplete file may have failed before
}

func TestRemovedRunDirectoryIsRecreated(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	n.run(func(c *Config) { c.Recheck = time.Hour })
	n.eventually("the first install", n.installed)
	for range 3 { // each time the directory is another one, which must be watched again
		if err := os.Rename(n.path("run"), filepath.Join(t.TempDir(), "lost")); err != nil {
			t.Fatal(err)
		}
		n.eventually("the kubeconfig", func() bool { _, err := os.Stat(n.path("run/kubeconfig")); return err == nil })
	}
}

func TestModesAreRestoredAtOnce(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	in := n.run(func(c *Config) { c.Recheck = time.Hour })
	n.eventually("the install", func() bool { return in.Health().OK })
	for path, mode := range map[string]fs.FileMode{"bin/pilotfish-cni": 0o755, "run/kubeconfig": 0o600} {
		if err := os.Chmod(n.path(path), 0o644); err != nil {
			t.Fatal(err)
		}
		n.eventually(path, func() bool { info, err := os.Stat(n.path(path)); return err == nil && info.Mode() == mode })
	}
}

func TestConflictIsReportedWithItsLikelyCauseAndBacksOff(t *testing.T) {
	cilium := strings.Replace(bridgeList, `"bridge", "bridge"`, `"cilium-cni", "bridge"`, 1)
	n := newNode(t, "10-podnet.conflist", cilium)
	out := &testenv.Buffer{}
	var fought atomic.Int32
	in := n.run(func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(out, nil))
		c.OnConflict = func(file string) {
			if file != "10-podnet.conflist" {
				t.Errorf("a conflict about %s was reported", file)
			}
			fought.Add(1)
		}
	})
	n.eventually("the install", func() bool { return n.installed() && in.Health().OK })
	for round := range maxRepairs + 1 {
		n.eventually(fmt.Sprint("round ", round), n.installed)
		n.eventually("the count", func() bool { return int(fought.Load()) == round })
		n.write("net.d/10-podnet.conflist", cilium)
	}
	n.eventually("the last round", n.installed)
	n.eventually("the warning", func() bool {
		return strings.Contains(out.String(), "repeatedly") && strings.Contains(out.String(), "cni.exclusive=false")
	})
}

func TestConflictBackoffGrowsAndResets(t *testing.T) {
	var f conflictDetector
	now := time.Unix(0, 0)
	var waits []time.Duration
	for range maxRepairs + 6 {
		_, wait := f.round(now, false)
		waits = append(waits, wait)
		now = now.Add(time.Second)
	}
	if !slices.IsSorted(waits) || waits[maxRepairs-1] != 0 || waits[maxRepairs] == 0 || waits[len(waits)-1] != maxBackoff {
		t.Errorf("the delays are %v", waits)
	}
	if _, wait := f.round(now, true); wait > time.Second {
		t.Errorf("pods start without the plugin for %v", wait)
	}
	if fight, wait := f.round(now.Add(2*conflictWindow), true); fight || wait != 0 {
		t.Error("one change per hour is reported as a conflict")
	}
}

func TestEveryInstallerFileHasAConflictHint(t *testing.T) {
	for _, plugin := range []string{"cilium-cni", "istio-cni", "calico", "multus", "aws-cni", "bridge"} {
		n, err := parseNetwork(filepath.Join("/etc/cni/net.d", "x"), []byte(`{"name":"x","plugins":[{"type":"`+plugin+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if hint := describeOpponent(n); hint == "" || plugin == "bridge" && !strings.Contains(hint, "bridge") {
			t.Errorf("%s: %s", plugin, hint)
		}
	}
	if describeOpponent(nil) == "" {
		t.Error("nobody")
	}
}

func TestPluginIsReinstalledBeforeItsTokenIsRenewed(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	asked, answer := make(chan struct{}), make(chan error)
	first := true
	in := n.installer(func(c *Config) {
		c.Token = func() (string, error) {
			if first {
				first = false
				return "token-1", nil
			}
			close(asked)
			return "token-2", <-answer
		}
	})
	if _, err := in.Install(); err != nil {
		t.Fatal(err)
	}
	n.write("net.d/10-podnet.conflist", bridgeList)
	ended := make(chan error)
	go func() {
		_, err := in.Install()
		ended <- err
	}()
	<-asked
	if !n.installed() {
		t.Error("the plugin is not restored until the API server responds")
	}
	answer <- errors.New("no answer")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "no answer") || in.Health().OK {
		t.Errorf("%v", err)
	}
	if text, _ := os.ReadFile(n.path("run/kubeconfig")); !n.installed() || !strings.Contains(string(text), "token-1") {
		t.Errorf("the restored plugin was rolled back, or the kubeconfig is lost: %s", text)
	}
}

// A rollback also changes files, so without a backoff its notification would trigger the next attempt immediately.
func TestRolledBackInstallIsRetriedWithBackoff(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	fails := true
	in := n.installer(func(c *Config) {
		c.Token = func() (string, error) {
			if fails {
				return "", errors.New("no token yet")
			}
			return "token-1", nil
		}
	})
	for i, want := range []time.Duration{1, 2, 4, 8, 15, 15} {
		if wait := in.round(false); wait != want*time.Second {
			t.Errorf("attempt %d: %v, not %d s", i+1, wait, want)
		}
	}
	if _, err := os.Stat(n.path("bin/pilotfish-cni")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the failed installation was not rolled back: %v", err)
	}
	fails = false
	if wait := in.round(false); wait != 0 || !n.installed() {
		t.Errorf("%v, installed %t", wait, n.installed())
	}
}

func TestInstallSucceedsOnceATokenExists(t *testing.T) {
	n := newNode(t, "10-podnet.conflist", bridgeList)
	var has atomic.Bool
	renewed := make(chan struct{}, 1)
	in := n.run(func(c *Config) {
		c.Renewed = renewed
		c.Token = func() (string, error) {
			if !has.Load() {
				return "", errors.New("no token yet")
			}
			return "token-1", nil
		}
	})
	n.eventually("the failure", func() bool { return strings.Contains(in.Health().Reason, "no token yet") })
	has.Store(true)
	renewed <- struct{}{}
	n.eventually("the plugin with its token", func() bool { return n.installed() && in.Health().OK })
}

func TestRemovedPluginIsReinstalledDespiteBackoffOfAnotherFile(t *testing.T) {
	for mode, take := range map[Mode]func(*node){
		Chained: func(n *node) { n.write("net.d/10-podnet.conflist", bridgeList) },
		DropIn: func(n *node) {
			if err := os.Remove(n.path("net.d/podnet/" + dropInName)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, "10-podnet.conflist", bridgeList)
			in := n.install(func(c *Config) { c.Mode, c.Settle = mode, time.Millisecond })
			in.absent = false // the conflict is about another file
			ended := make(chan error, 1)
			go func() { ended <- in.waitOut(t.Context(), time.Hour) }()
			take(n)
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the plugin is not restored until the end of the backoff")
			}
		})
	}
}
