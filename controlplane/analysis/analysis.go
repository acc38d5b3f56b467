// Package analysis finds problems in the documents of a mesh. Checker checks how the documents of a running mesh affect
// each other. Analyze needs no running mesh: it checks files, each document alone and all documents together.
package analysis

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Schema identifies the JSON format of a Report. Fields may be added, but are not removed or changed.
const Schema = "pilotfish.dev/analysis/v1"

// Config configures an analysis.
type Config struct {
	// Paths lists directories, which are read recursively, and files; "-" is Stdin.
	Paths []string
	Stdin io.Reader
	// DefaultNamespace is the namespace of documents that specify none; "default" if empty.
	DefaultNamespace string
	// Mesh is the mesh configuration; nil selects the defaults. MeshFile is a file that replaces Mesh. If the file is
	// invalid, the analysis uses the defaults.
	Mesh     *meshconfig.MeshConfig
	MeshFile string
	// MeshProblems contains the problems of Mesh with their positions.
	MeshProblems []config.Problem
	// OnInvalidPolicy selects the effect of a policy that has never had an accepted version.
	OnInvalidPolicy config.OnInvalidPolicy
	// Stores are analyzed in addition to the files, for example the workloads of a topology.
	Stores []config.Store
	// Endpoints restricts the endpoints in documents.
	Endpoints registry.EndpointPolicy
	// Suppress removes findings, in addition to annotations of the documents.
	Suppress []Suppression
}

// Suppression selects findings that the report omits. Errors cannot be suppressed.
type Suppression struct {
	Code config.Code
	// Resource is a pattern for "Kind namespace/name", in which * matches any text without a slash; empty matches all.
	Resource string
}

// ParseSuppression parses "PF0202" or "PF0202=VirtualService shop/*".
func ParseSuppression(text string) (Suppression, error) {
	code, resource, _ := strings.Cut(text, "=")
	info, ok := config.ExplainCode(code)
	if !ok {
		return Suppression{}, fmt.Errorf("%q is not the code of a finding: `pilotfish analyze --codes` lists them", code)
	}
	if _, err := path.Match(resource, ""); err != nil {
		return Suppression{}, fmt.Errorf("suppression %q: %q is not a valid pattern: %w", text, resource, err)
	}
	return Suppression{info.Code, resource}, nil
}

func (s Suppression) matches(p config.Problem) bool {
	if p.Severity == config.Error || p.Code != s.Code {
		return false
	}
	if s.Resource == "" {
		return true
	}
	ok, err := path.Match(s.Resource, p.Key.String())
	return ok && err == nil
}

// Report is the result of an analysis.
type Report struct {
	Schema string `json:"schema"`
	// Documents is the number of all documents. InForce is the number of documents that would be in force.
	Documents int            `json:"documents"`
	InForce   int            `json:"inForce"`
	Suppress  int            `json:"suppressed"`
	Summary   map[string]int `json:"summary"`
	// Findings are ordered by file and position.
	Findings []Finding `json:"findings"`
}

// Finding is a problem with the name of its code.
type Finding struct {
	Name string `json:"name"`
	config.Problem
}

// Analyze validates the documents and returns a report. It fails if files cannot be read.
func Analyze(cfg Config) (*Report, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("nothing to analyze: specify directories or files, or - for standard input")
	}
	r := &reader{cfg: cfg}
	if err := r.readPaths(); err != nil {
		return nil, err
	}
	if err := r.readMesh(); err != nil {
		return nil, err
	}
	store := config.NewMultiStore(append(r.stores, cfg.Stores...)...)
	built := snapshot.Build(nil, snapshot.Inputs{Store: store, Mesh: r.cfg.Mesh, GatewayAccounts: &snapshot.GatewayAccounts{}, Endpoints: &cfg.Endpoints, StartsProxies: len(cfg.Stores) > 0}, nil)
	documentProblems := slices.Concat(cfg.MeshProblems, r.problems, store.Problems())
	problems := append(documentProblems, ExplainRefused(built, Check(built), documentProblems)...)
	return newReport(cfg, r, problems, store), nil
}

// reader reads the documents of all inputs and counts them.
type reader struct {
	cfg                Config
	stores             []config.Store
	problems           []config.Problem
	documents, inForce int
}

func (r *reader) readPaths() error {
	paths := slices.DeleteFunc(slices.Clone(r.cfg.Paths), func(p string) bool { return p == "-" })
	if len(paths) > 0 {
		dirs, err := dirstore.New(dirstore.Config{Paths: paths, DefaultNamespace: r.cfg.DefaultNamespace, Check: envoyfilter.Check, StartsProxies: len(r.cfg.Stores) > 0, OnInvalidPolicy: r.cfg.OnInvalidPolicy})
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

func (r *reader) readStdin() error {
	if r.cfg.Stdin == nil {
		return errors.New("no standard input to read for the argument -")
	}
	text, err := io.ReadAll(io.LimitReader(r.cfg.Stdin, config.MaxFileSize+1))
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	resources, problems := config.Parser{DefaultNamespace: r.cfg.DefaultNamespace, Check: envoyfilter.Check, OnInvalidPolicy: r.cfg.OnInvalidPolicy}.Parse("-", text)
	store := config.NewMemoryStore()
	store.Put(resources...)
	r.stores, r.problems = append(r.stores, store), append(r.problems, problems...)
	left := map[config.Key]bool{} // documents that are not in force
	for _, p := range problems {
		if p.Severity == config.Error || p.Code == config.KindNoEffect {
			left[p.Key] = true
		}
	}
	r.documents, r.inForce = r.documents+len(resources)+len(left), r.inForce+len(resources)
	return nil
}

func (r *reader) readMesh() error {
	if r.cfg.MeshFile == "" {
		return nil
	}
	text, err := os.ReadFile(r.cfg.MeshFile)
	if err != nil {
		return fmt.Errorf("reading the mesh configuration: %w", err)
	}
	mesh, problems := config.ReadMesh(r.cfg.MeshFile, text)
	r.cfg.Mesh, r.problems = mesh, append(r.problems, problems...)
	return nil
}

func newReport(cfg Config, r *reader, problems []config.Problem, store config.Store) *Report {
	out := &Report{Schema: Schema, Documents: r.documents, InForce: r.inForce, Summary: map[string]int{}, Findings: []Finding{}}
	for _, s := range []config.Severity{config.Error, config.Warning, config.Info} {
		out.Summary[string(s)] = 0
	}
	all := len(problems)
	problems = config.Unsuppressed(problems, store)
	problems = slices.DeleteFunc(problems, func(p config.Problem) bool {
		return slices.ContainsFunc(cfg.Suppress, func(s Suppression) bool { return s.matches(p) })
	})
	out.Suppress = all - len(problems)
	slices.SortStableFunc(problems, comparePosition)
	for _, p := range problems {
		info, _ := config.ExplainCode(string(p.Code))
		out.Summary[string(p.Severity)]++
		out.Findings = append(out.Findings, Finding{Name: info.Name, Problem: p})
	}
	return out
}

// severityRank returns the rank of a severity. Higher ranks are more severe.
func severityRank(s config.Severity) int {
	return slices.Index([]config.Severity{config.Info, config.Warning, config.Error}, s)
}

// AtLeast reports whether there is a finding with severity s or a higher one.
func (r *Report) AtLeast(s config.Severity) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return severityRank(f.Severity) >= severityRank(s) })
}

// FilterSeverity removes the findings whose severity is lower than s. The summary still counts all findings.
func (r *Report) FilterSeverity(s config.Severity) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return severityRank(f.Severity) < severityRank(s) })
}
