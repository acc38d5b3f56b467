package install

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

var errInjected = errors.New("injected")

// failAt makes the nth file operation fail. With killed, all following operations fail too, as if the process were killed.
func failAt(n int, killed bool) (before func(string, string) error, steps *int) {
	count := 0
	return func(step, path string) error {
		count++
		if count == n || killed && count > n {
			return fmt.Errorf("%s %s: %w", step, path, errInjected)
		}
		return nil
	}, &count
}

// served fails the test if a CNI configuration references the plugin, but its binary or kubeconfig is missing.
func (n *node) served(t *testing.T) {
	t.Helper()
	if !strings.Contains(strings.Join(n.chain(), " "), PluginType) {
		return
	}
	for _, path := range []string{"bin/pilotfish-cni", "bin2/pilotfish-cni", "run/kubeconfig"} {
		if _, err := os.Stat(n.path(path)); err != nil {
			t.Errorf("the CNI configuration references the plugin, but %v", err)
		}
	}
}

// oldOrNew checks that a runtime uses one of two plugin lists for new pods.
func (n *node) oldOrNew(t *testing.T, before, after []string) {
	t.Helper()
	got := strings.Join(n.chain(), " ")
	if got != strings.Join(before, " ") && got != strings.Join(after, " ") {
		t.Errorf("new pods use the plugins %s, which is neither the old nor the new list", got)
	}
	n.served(t)
}

func TestInstallFailingAtAnyStepIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				n := newNode(t, w.file, w.content)
				before := n.files()
				var steps *int
				in := n.installer(func(c *Config) { c.Mode = w.mode; c.before, steps = failAt(at, false) })
				_, err := in.Install()
				if *steps < at {
					if err != nil || at < 10 {
						t.Fatalf("%d steps: %v", *steps, err)
					}
					return
				}
				if !errors.Is(err, errInjected) || in.Health().OK {
					t.Errorf("step %d: %v", at, err)
				}
				if now := withoutStaging(n.files()); now != before {
					t.Errorf("step %d (%v): left\n%s\nwas\n%s", at, err, now, before)
				}
				if _, err := n.installer(func(c *Config) { c.Mode = w.mode }).Install(); err != nil {
					t.Errorf("step %d: the next install: %v", at, err)
				}
				n.wantChain(w.after...)
			}
		})
	}
}

// withoutStaging removes temporary files from the list, because the step that failed may be their removal.
func withoutStaging(files string) string {
	var keep strings.Builder
	for line := range strings.Lines(files) {
		if !strings.Contains(line, staging) && !strings.HasPrefix(line, "/net.d/podnet d") {
			keep.WriteString(line)
		}
	}
	return keep.String()
}

func TestInstallKilledAtAnyStepLeavesTheOldOrTheNewState(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				n := newNode(t, w.file, w.content)
				before := n.files()
				var steps *int
				in := n.installer(func(c *Config) { c.Mode = w.mode; c.before, steps = failAt(at, true) })
				if _, err := in.Install(); *steps < at {
					if err != nil || at < 10 {
						t.Fatalf("%d steps: %v", *steps, err)
					}
					return
				}
				n.oldOrNew(t, w.before, w.after)
				fresh := n.install(func(c *Config) { c.Mode = w.mode })
				n.wantChain(w.after...)
				if strings.Contains(n.files(), staging) {
					t.Errorf("step %d: temporary files remain", at)
				}
				if err := fresh.Uninstall(); err != nil || n.files() != before {
					t.Errorf("step %d: files after the uninstallation (%v)\n%s\nbefore the installation\n%s", at, err, n.files(), before)
				}
			}
		})
	}
}

func TestKilledAtAnyStepOfTheUninstallLeavesNoPodWithAMissingPlugin(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				n := newNode(t, w.file, w.content)
				before := n.files()
				n.install(func(c *Config) { c.Mode = w.mode })
				var steps *int
				in := n.installer(func(c *Config) { c.Mode = w.mode; c.before, steps = failAt(at, true) })
				if err := in.Uninstall(); *steps < at {
					if err != nil || at < 6 {
						t.Fatalf("%d steps: %v", *steps, err)
					}
					return
				}
				n.oldOrNew(t, w.before, w.after)
				if err := n.installer(func(c *Config) { c.Mode = w.mode }).Uninstall(); err != nil || n.files() != before {
					t.Errorf("step %d: files after the second attempt (%v)\n%s\nbefore\n%s", at, err, n.files(), before)
				}
			}
		})
	}
}

func TestKilledAtAnyStepOfAnUpgradeLeavesNewPodsProtected(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				n := newNode(t, w.file, w.content)
				n.install(func(c *Config) { c.Mode = w.mode })
				n.write("image/pilotfish-cni", "the plugin of the next version")
				n.write("sa/token", "token-2")
				var steps *int
				in := n.installer(func(c *Config) {
					c.Mode, c.Plugin = w.mode, map[string]any{"cni_agent_run_dir": "/elsewhere"}
					c.before, steps = failAt(at, true)
				})
				if _, err := in.Install(); *steps < at {
					if err != nil || at < 10 {
						t.Fatalf("%d steps: %v", *steps, err)
					}
					return
				}
				n.wantChain(w.after...)
				n.served(t)
			}
		})
	}
}

func TestUpgradeFailingAtAnyStepRestoresThePreviousVersion(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		n := newNode(t, "10-podnet.conflist", bridgeList)
		n.install()
		n.write("image/pilotfish-cni", "the plugin of the next version")
		before := n.files()
		var steps *int
		in := n.installer(func(c *Config) {
			c.Plugin = map[string]any{"cni_agent_run_dir": "/elsewhere"}
			c.before, steps = failAt(at, false)
		})
		_, err := in.Install()
		if *steps < at {
			if err != nil || at < 10 || strings.Contains(n.files(), staging) {
				t.Fatalf("%d steps: %v\n%s", *steps, err, n.files())
			}
			return
		}
		if err == nil { // the next attempt removes temporary files that remain
			n.install(func(c *Config) { c.Plugin = map[string]any{"cni_agent_run_dir": "/elsewhere"} })
		} else if now := withoutStaging(n.files()); now != before {
			t.Errorf("step %d (%v): left\n%s\nwas\n%s", at, err, now, before)
		}
	}
}
