package install

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// Another program may write its configuration again while the installer processes the previous version. The installer
// must not overwrite the newer version. The test does not write between the installer's last check and the change itself
// (steps "rename" and "remove"), because the installer cannot detect this.
func TestConcurrentForeignEditsAreNotLost(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			newer := strings.Replace(w.content, "cni0", "cni7", 1)
			for _, end := range []bool{false, true} {
				for at := 1; ; at++ {
					n := newNode(t, w.file, w.content)
					if end {
						n.install(func(c *Config) { c.Mode = w.mode })
					}
					count, wrote := 0, false
					in := n.installer(func(c *Config) {
						c.Mode = w.mode
						c.before = func(step, _ string) error {
							if count++; count == at && step != "rename" && step != "remove" {
								wrote = true
								n.write("net.d/"+w.file, newer)
							}
							return nil
						}
					})
					if end {
						if err := in.Uninstall(); err != nil {
							t.Errorf("step %d of the uninstallation: %v", at, err)
						}
					} else {
						for tries := 0; ; tries++ {
							_, err := in.Install()
							if err == nil && tries > 0 {
								break
							}
							if err != nil && (tries > 1 || !errors.Is(err, errChanged)) {
								t.Fatalf("step %d: %v", at, err)
							}
						}
						n.wantChain(w.after...)
					}
					if text := n.texts("net.d"); wrote && !strings.Contains(text, "cni7") {
						t.Errorf("step %d (uninstall: %v): the other program's change is lost:\n%s", at, end, text)
					} else if end && strings.Contains(text, PluginType) {
						t.Errorf("step %d of the uninstallation: the plugin's entry remains:\n%s", at, text)
					}
					if count < at {
						break
					}
				}
			}
		})
	}
}

// texts returns the contents of all files in a directory that container runtimes read.
func (n *node) texts(dir string) string {
	var all strings.Builder
	entries, err := os.ReadDir(n.path(dir))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue
		}
		text, err := os.ReadFile(n.path(dir + "/" + e.Name()))
		if err != nil {
			n.t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
