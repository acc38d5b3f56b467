package demo

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
)

// The test binary also acts as the program pilotfish: the mesh starts it to run the services of the shop and the guard,
// which cleans up after the mesh.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "bookshop" || os.Args[1] == "guard") {
		root := &cobra.Command{}
		root.AddCommand(NewBookshopCommand(), mesh.NewGuardCommand())
		if root.Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(2) // an unknown pilotfish command must not run the tests
	}
	os.Exit(m.Run())
}

const adasRoute = `x-user: {exact: ada}
      route:
        - destination: {host: reviews, subset: `

// breaks contains edits of the example. Each edit must make exactly one check fail.
var breaks = map[string][]struct{ check, old, new string }{
	"security.yaml": {
		{"STRICT mutual TLS", "STRICT", "PERMISSIVE"},
		{"authorization policy", "principals: [cluster.local/ns/bookshop/sa/page]", `principals: ["*"]`},
	},
	"ratings.yaml": {{"injected fault", "percentage: {value: 100}", "percentage: {value: 50}"}},
	"reviews.yaml": {
		{"retry hides the fault", "attempts: 10", "attempts: 0"},
		{"timeout of a slow call", "timeout: 0.4s", "timeout: 5s"},
		{"route by header", adasRoute + "v2}", adasRoute + "v3}"},
	},
}

func TestChecksDetectFaults(t *testing.T) {
	t.Setenv("PATH", filepath.Dir(testenv.Bin(t, "pilotfish-agent"))+":"+os.Getenv("PATH"))
	dir := filepath.Join(t.TempDir(), "shop")
	if err := writeExample(dir); err != nil {
		t.Fatal(err)
	}
	broken := append(breakExample(t, dir), "invalid document is refused") // "invalid document is refused" also fails: it sends requests as ada, whose route one of the edits changes
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newShop(options{check: true, dir: dir, port: port, envoyPath: testenv.Envoy(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.start(context.Background())
	for _, r := range check.Run(t.Context(), &check.Target{
		Mesh: s.Mesh, Gateway: s.url(), ConfigDir: s.configDir(), WaitReady: s.WaitReady, Stop: s.stop,
	}, noReport{}) {
		if r.OK == slices.Contains(broken, r.Check) {
			t.Errorf("%s: OK is %v: %s", r.Check, r.OK, r.Evidence)
		}
	}
}

// breakExample applies the edits to the example, and returns the checks that must fail because of them.
func breakExample(t *testing.T, dir string) (checks []string) {
	t.Helper()
	for name, edits := range breaks {
		path := filepath.Join(dir, "config", name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, e := range edits {
			if !strings.Contains(text, e.old) {
				t.Fatalf("%s does not contain %q", name, e.old)
			}
			text = strings.ReplaceAll(text, e.old, e.new)
			checks = append(checks, e.check)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return checks
}
