package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const module = "github.com/pilotfish-mesh/pilotfish"

// pkg is one package in the output of `go list`.
type pkg struct {
	ImportPath string
	Imports    []string // direct
	Deps       []string // all
}

// leaves are packages that the agent combines and that must not import each other.
var leaves = []string{"bootstrap", "envoy", "xdsproxy", "sds", "sts", "status", "dns", "wasm", "iptables"}

// rule forbids imports to the packages of some folders. A folder includes the folders below it. A forbidden name that
// begins with a folder of this repository is relative to the module; every other name is the prefix of an import path.
type rule struct {
	reason    string
	of        []string
	direct    bool // check direct imports only
	forbidden []string
}

var rules = []rule{
	{
		reason:    "the agent, the CNI plugin and its node agent link no control plane, no mesh and no Kubernetes client",
		of:        []string{"cmd/pilotfish-agent", "cmd/pilotfish-iptables", "cmd/pilotfish-cni", "cmd/pilotfish-cni-install", "cmd/pilotfish-cni-tombstone", "agent", "cni"},
		forbidden: []string{"controlplane", "mesh", "k8s.io"},
	},
	{
		reason: "only cmd/pilotfish links the Kubernetes client, so that the parts of the control plane work without a cluster",
		of: []string{"controlplane/config", "controlplane/registry", "controlplane/snapshot", "controlplane/translate", "controlplane/xds",
			"controlplane/ca", "controlplane/envoyfilter", "controlplane/analysis", "mesh", "bench"},
		forbidden: []string{"k8s.io", "sigs.k8s.io", "controlplane/kube"},
	},
	{
		reason:    "the agent's settings and log are resolved before there is an agent",
		of:        []string{"agent/config", "agent/logging"},
		direct:    true,
		forbidden: []string{"agent"},
	},
	{
		reason:    "only binaries have a command line",
		of:        []string{"agent", "bootstrap", "envoy", "xdsproxy", "sds", "sts", "status", "dns", "wasm", "iptables", "cni"},
		direct:    true,
		forbidden: []string{"agent/command"},
	},
	{
		reason:    "config and registry do not import Envoy",
		of:        []string{"controlplane/config", "controlplane/registry"},
		forbidden: []string{"github.com/envoyproxy", "github.com/cncf/xds", "controlplane/xds", "controlplane/translate", "controlplane/snapshot"},
	},
	{
		reason:    "xds does not import Istio resources",
		of:        []string{"controlplane/xds"},
		forbidden: []string{"istio.io/api", "controlplane/config", "controlplane/registry", "controlplane/snapshot", "controlplane/translate"},
	},
	{
		reason: "translate is pure: it opens no file, no connection, starts no process, and reads no clock or random source",
		of:     []string{"controlplane/translate"},
		direct: true,
		forbidden: []string{"os", "os/exec", "io/fs", "io/ioutil", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "log",
			"log/slog"},
	},
	{
		reason:    "mesh drives the agent only as the process it is",
		of:        []string{"mesh"},
		direct:    true,
		forbidden: []string{"agent", "bootstrap", "xdsproxy", "sds", "sts", "status", "dns", "iptables", "cni"},
	},
	{
		reason: "no product package links benchmarks or test support",
		of: []string{"cmd", "agent", "bootstrap", "envoy", "xdsproxy", "sds", "sts", "status", "dns", "wasm", "iptables", "cni",
			"controlplane", "mesh", "version"},
		forbidden: []string{"bench", "e2e", "internal/envoytest", "internal/meshfuzz", "internal/testcluster", "internal/testenv", "internal/testimage", "internal/testns", "internal/testpki"},
	},
	{
		reason:    "nothing imports a command",
		of:        []string{"agent", "bootstrap", "envoy", "xdsproxy", "sds", "status", "controlplane", "mesh", "internal"},
		forbidden: []string{"cmd"},
	},
}

func TestImportRules(t *testing.T) {
	packages := list(t)
	all := slices.Clone(rules)
	for _, leaf := range leaves {
		others := slices.DeleteFunc(slices.Clone(leaves), func(l string) bool { return l == leaf })
		all = append(all, rule{
			reason:    leaf + " imports no other leaf package, and not what composes it",
			of:        []string{leaf},
			forbidden: append(others, "agent", "controlplane", "mesh"),
		})
	}
	for _, r := range all {
		for _, p := range packages {
			if !covered(p.ImportPath, r.of) {
				continue
			}
			imports := p.Deps
			if r.direct {
				imports = p.Imports
			}
			for _, bad := range violations(imports, r) {
				t.Errorf("%s imports %s, but %s", p.ImportPath, bad, r.reason)
			}
		}
	}
}

// TestImportRulesCanFail: a rule that applies to no package, or a check that never fails, would test nothing.
func TestImportRulesCanFail(t *testing.T) {
	packages := list(t)
	for _, r := range rules {
		for _, folder := range r.of {
			if !slices.ContainsFunc(packages, func(p pkg) bool { return covered(p.ImportPath, []string{folder}) }) {
				t.Errorf("the rule %q names %s, which has no package", r.reason, folder)
			}
		}
	}
	got := violations([]string{"os", "osx", module + "/mesh/demo", module + "/meshy", "k8s.io/client-go"},
		rule{of: []string{"agent"}, forbidden: []string{"os", "mesh", "k8s.io"}})
	want := []string{"os", module + "/mesh/demo", "k8s.io/client-go"}
	if !slices.Equal(got, want) {
		t.Errorf("violations = %v, want %v", got, want)
	}
}

// pure lists the functions without I/O and clock that pure code may use of packages that are otherwise not pure.
var pure = map[string]*regexp.Regexp{
	"net":                    regexp.MustCompile(`^(JoinHostPort|SplitHostPort|ParseIP|ParseCIDR|IP|IPNet|IPMask)$`),
	"net/http":               regexp.MustCompile(`^(Status|Method)`),
	"time":                   regexp.MustCompile(`^(Duration|ParseDuration|(Nano|Micro|Milli)?[sS]econds?|Minute|Hour)$`),
	"google.golang.org/grpc": regexp.MustCompile(`^$`),
}

func TestTranslateIsPure(t *testing.T) {
	for _, use := range impure(t, filepath.Join(testenv.Root(), "controlplane", "translate")) {
		t.Errorf("%s, but translate is pure: same input, same bytes", use)
	}
	for _, want := range []string{"net.Dial", "time.Now"} {
		dir := t.TempDir()
		parts := strings.Split(want, ".")
		source := fmt.Sprintf("package p\n\nimport %q\n\nvar x = %s\n", parts[0], want)
		if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		if len(impure(t, dir)) != 1 {
			t.Errorf("the use of %s is not detected", want)
		}
	}
}

// impure returns the uses of impure functions in the sources of a folder.
func impure(t *testing.T, dir string) (uses []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s (%v)", dir, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if allowed, ok := pure[importOf(file, sel.X)]; ok && !allowed.MatchString(sel.Sel.Name) {
					uses = append(uses, fmt.Sprintf("%s uses %s.%s", set.Position(sel.Pos()), importOf(file, sel.X), sel.Sel.Name))
				}
			}
			return true
		})
	}
	return uses
}

// importOf returns the import path of the package that an expression names, or "".
func importOf(file *ast.File, x ast.Expr) string {
	ident, ok := x.(*ast.Ident)
	if !ok || ident.Obj != nil { // a variable with the name of a package
		return ""
	}
	for _, spec := range file.Imports {
		importPath := strings.Trim(spec.Path.Value, `"`)
		if (spec.Name != nil && spec.Name.Name == ident.Name) || (spec.Name == nil && path.Base(importPath) == ident.Name) {
			return importPath
		}
	}
	return ""
}

func covered(importPath string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return isWithin(importPath, module+"/"+f) })
}

func violations(imports []string, r rule) []string {
	var bad []string
	for _, path := range imports {
		if slices.ContainsFunc(r.forbidden, func(f string) bool { return forbids(f, path) }) {
			bad = append(bad, path)
		}
	}
	return bad
}

// forbids reports whether the name in a rule applies to an import path. The name of a standard package applies only to
// that package (net, not net/netip). Other names also apply to all packages below them.
func forbids(name, path string) bool {
	if isWithin(path, module+"/"+name) {
		return true
	}
	if strings.Contains(strings.SplitN(name, "/", 2)[0], ".") {
		return isWithin(path, name)
	}
	return path == name
}

func isWithin(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = testenv.Root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("decoding the output of go list: %v", err)
		}
		if isWithin(p.ImportPath, module) {
			packages = append(packages, p)
		}
	}
	return packages
}
