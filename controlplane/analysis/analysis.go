// Package analysis looks at the documents of a mesh without running one: each by itself and against the others, as a
// control plane does before they are in force.
package analysis

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Schema names the form of a Report as JSON. Fields may be added; none goes or changes its meaning.
const Schema = "pilotfish.dev/analysis/v1"

// Config says what is looked at.
type Config struct {
	// Paths are directories, read with all below them, and files; "-" is Stdin.
	Paths []string
	Stdin io.Reader
	// DefaultNamespace is the namespace of documents that name none; "default" when empty.
	DefaultNamespace string
	// Mesh is the mesh's configuration; nil is all defaults. MeshFile is a file that has it instead: where that is refused, all
	// is looked at as by default.
	Mesh     *meshconfig.MeshConfig
	MeshFile string
	// MeshProblems are what is to be said of Mesh, at its places.
	MeshProblems []config.Problem
	// Stores are read beside the files: the workloads of a topology, for instance.
	Stores []config.Store
	// Suppress leaves out findings, besides those that documents suppress by themselves.
	Suppress []Suppression
}

// Suppression names findings that are known and accepted. Errors cannot be suppressed.
type Suppression struct {
	Code config.Code
	// Resource is a pattern for "Kind namespace/name", with * for anything within a part; empty is all.
	Resource string
}

// ParseSuppression reads "PF0202" or "PF0202=VirtualService shop/*".
func ParseSuppression(text string) (Suppression, error) {
	code, resource, _ := strings.Cut(text, "=")
	info, ok := config.ExplainCode(code)
	if !ok {
		return Suppression{}, fmt.Errorf("%q is not the code of a finding: `pilotfish analyze --codes` lists them", code)
	}
	if _, err := path.Match(resource, ""); err != nil {
		return Suppression{}, fmt.Errorf("%q: the pattern %q: %w", text, resource, err)
	}
	return Suppression{info.Code, resource}, nil
}

func (s Suppression) covers(p config.Problem) bool {
	if p.Severity == config.Error || p.Code != s.Code {
		return false
	}
	if s.Resource == "" {
		return true
	}
	ok, err := path.Match(s.Resource, p.Key.String())
	return ok && err == nil
}

// Report is what was found.
type Report struct {
	Schema string `json:"schema"`
	// Documents counts those that were read, InForce those of them that would be in force.
	Documents int            `json:"documents"`
	InForce   int            `json:"inForce"`
	Suppress  int            `json:"suppressed"`
	Summary   map[string]int `json:"summary"`
	// Findings are ordered by file and place.
	Findings []Finding `json:"findings"`
}

// Finding is a problem and the name of its code.
type Finding struct {
	Name string `json:"name"`
	config.Problem
}

// Analyze reads the documents and gives what is to be said of them. Its errors are of what cannot be read at all.
func Analyze(cfg Config) (*Report, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("nothing to look at: name directories or files, or - for what comes in")
	}
	r := &reading{cfg: cfg}
	if err := r.read(); err != nil {
		return nil, err
	}
	if err := r.readMesh(); err != nil {
		return nil, err
	}
	store := config.Join(append(r.stores, cfg.Stores...)...)
	built := snapshot.Build(nil, snapshot.Inputs{Store: store, Mesh: r.cfg.Mesh}, nil)
	problems := slices.Concat(cfg.MeshProblems, r.problems, store.Problems(), built.Problems())
	return report(cfg, r, problems, store), nil
}

// reading is the documents that were read.
type reading struct {
	cfg                Config
	stores             []config.Store
	problems           []config.Problem
	documents, inForce int
}

func (r *reading) read() error {
	paths := slices.DeleteFunc(slices.Clone(r.cfg.Paths), func(p string) bool { return p == "-" })
	if len(paths) > 0 {
		dirs, err := config.NewDirStore(config.DirConfig{Paths: paths, DefaultNamespace: r.cfg.DefaultNamespace, Check: envoyfilter.Check, StartsProxies: len(r.cfg.Stores) > 0})
		if err != nil {
			return err
		}
		r.stores, r.problems = append(r.stores, dirs), dirs.Problems()
		for _, d := range dirs.Documents() {
			r.documents++
			if d.State == config.InForce {
				r.inForce++
			}
		}
	}
	if len(paths) == len(r.cfg.Paths) {
		return nil
	}
	return r.readStdin()
}

func (r *reading) readStdin() error {
	if r.cfg.Stdin == nil {
		return errors.New("there is nothing to read for -")
	}
	text, err := io.ReadAll(io.LimitReader(r.cfg.Stdin, config.MaxFileSize+1))
	if err != nil {
		return fmt.Errorf("reading what comes in: %w", err)
	}
	resources, problems := config.Parser{DefaultNamespace: r.cfg.DefaultNamespace, Check: envoyfilter.Check}.Parse("-", text)
	store := config.NewMemoryStore()
	store.Put(resources...)
	r.stores, r.problems = append(r.stores, store), append(r.problems, problems...)
	left := map[config.Key]bool{} // that are not in force
	for _, p := range problems {
		if p.Severity == config.Error || p.Code == config.KindNoEffect {
			left[p.Key] = true
		}
	}
	r.documents, r.inForce = r.documents+len(resources)+len(left), r.inForce+len(resources)
	return nil
}

func (r *reading) readMesh() error {
	if r.cfg.MeshFile == "" {
		return nil
	}
	text, err := os.ReadFile(r.cfg.MeshFile)
	if err != nil {
		return fmt.Errorf("the mesh configuration: %w", err)
	}
	mesh, problems := config.ReadMesh(r.cfg.MeshFile, text)
	r.cfg.Mesh, r.problems = mesh, append(r.problems, problems...)
	return nil
}

func report(cfg Config, r *reading, problems []config.Problem, store config.Store) *Report {
	out := &Report{Schema: Schema, Documents: r.documents, InForce: r.inForce, Summary: map[string]int{}, Findings: []Finding{}}
	for _, s := range []config.Severity{config.Error, config.Warning, config.Info} {
		out.Summary[string(s)] = 0
	}
	all := len(problems)
	problems = config.Unsuppressed(problems, store)
	problems = slices.DeleteFunc(problems, func(p config.Problem) bool {
		return slices.ContainsFunc(cfg.Suppress, func(s Suppression) bool { return s.covers(p) })
	})
	out.Suppress = all - len(problems)
	slices.SortStableFunc(problems, func(a, b config.Problem) int {
		return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	for _, p := range problems {
		info, _ := config.ExplainCode(string(p.Code))
		out.Summary[string(p.Severity)]++
		out.Findings = append(out.Findings, Finding{Name: info.Name, Problem: p})
	}
	return out
}

// rank orders severities.
func rank(s config.Severity) int {
	return slices.Index([]config.Severity{config.Info, config.Warning, config.Error}, s)
}

// AtLeast says whether there is a finding of that severity or a graver one.
func (r *Report) AtLeast(s config.Severity) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return rank(f.Severity) >= rank(s) })
}

// Only leaves the findings of that severity and graver ones; the summary counts all.
func (r *Report) Only(s config.Severity) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return rank(f.Severity) < rank(s) })
}
