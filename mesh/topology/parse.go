package topology

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// maxTopologySize is far larger than any real topology. Without it, the parser could spend minutes on a wrong file.
const maxTopologySize = 4 << 20

// InvalidError lists all problems of a topology file.
type InvalidError struct {
	File     string
	Problems []config.Problem
}

func (e *InvalidError) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

func readTopologyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the topology file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTopologySize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the topology file: %w", err)
	}
	if len(data) > maxTopologySize {
		return nil, fmt.Errorf("reading the topology file: %s is larger than %d bytes: check the path", path, maxTopologySize)
	}
	return data, nil
}

// Parse parses the contents of a topology file. It does not access the disk; CheckFiles checks the referenced files.
func Parse(file string, data []byte) (*Topology, error) {
	doc, t, err := parseTopology(file, data)
	if err != nil {
		return nil, err
	}
	if err := doc.err(); err != nil {
		return nil, err
	}
	t.fillDefaults()
	return t, nil
}

// parseTopology parses the topology as far as possible, and collects problems in the document.
func parseTopology(file string, data []byte) (*document, *Topology, error) {
	doc := &document{file: file}
	root, err := rootNode(file, data)
	if err != nil {
		return nil, nil, err
	}
	t := doc.topology(value{doc: doc, node: root})
	doc.checkRest(t.validate)
	return doc, t, nil
}

// checkRest runs more checks. It drops problems that they report at a position that already has one: the field at that
// position could not be read, so further problems would be misleading.
func (d *document) checkRest(check func()) {
	before := len(d.problems)
	known := map[config.Position]bool{}
	for _, p := range d.problems {
		known[p.At] = true
	}
	check()
	found := d.problems[before:]
	d.problems = append(d.problems[:before:before], slices.DeleteFunc(found, func(p config.Problem) bool { return known[p.At] })...)
}

// err returns an error that lists the document's problems in the order of the file, or nil.
func (d *document) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b config.Problem) int {
		return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	return &InvalidError{File: d.file, Problems: d.problems}
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// rootNode returns the root of the file's only YAML document.
func rootNode(file string, data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, newInvalidError(config.Position{File: file, Line: 1, Column: 1}, "the file is empty", "docs/topology.md describes the fields of a topology")
	}
	if err != nil {
		return nil, syntaxError(file, err)
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, newInvalidError(config.Position{File: file, Line: next.Line, Column: next.Column}, "a topology file must contain only one document; a second one begins here",
			"move Istio and Kubernetes documents to the files that spec.config lists")
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(file, err)
	}
	return doc.Content[0], nil
}

func syntaxError(file string, err error) error {
	m := yamlErrorLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m == nil {
		return newInvalidError(config.Position{File: file}, "not YAML: "+err.Error(), "check the indentation and the quotes")
	}
	line, _ := strconv.Atoi(m[1])
	return newInvalidError(config.Position{File: file, Line: line}, "not YAML: "+m[2], "check the indentation and the quotes near this line")
}

func newInvalidError(at config.Position, message, remedy string) error {
	return &InvalidError{File: at.File, Problems: []config.Problem{{
		Severity: config.Error, At: at, Message: message, Remedy: remedy,
	}}}
}

func (d *document) topology(v value) *Topology {
	t := &Topology{File: d.file, Mesh: &meshconfig.MeshConfig{}}
	var apiVersion, kind string
	present := v.object(map[string]func(value){
		"apiVersion": func(v value) { v.oneOf(&apiVersion, APIVersion) },
		"kind":       func(v value) { v.oneOf(&kind, Kind) },
		"metadata": func(v value) {
			v.object(map[string]func(value){"name": func(v value) { v.meshName(&t.Name) }})
		},
		"spec": func(v value) { d.spec(v, t) },
	})
	v.require(present, "apiVersion", "apiVersion: "+APIVersion)
	v.require(present, "kind", "kind: "+Kind)
	v.require(present, "spec", "spec: with config and workloads")
	if t.Name == "" && len(d.problems) == 0 {
		v.problem("add metadata: {name: my-mesh}", "metadata.name is missing")
	}
	return t
}

// require adds a problem if a field is missing.
func (v value) require(present map[string]bool, field, example string) {
	if v.node.Kind == yaml.MappingNode && !present[field] {
		v.doc.problems = append(v.doc.problems, config.Problem{
			Severity: config.Error, At: v.position(), Field: v.join(field),
			Message: "the field is missing", Remedy: "add " + example,
		})
	}
}

func (d *document) spec(v value, t *Topology) {
	t.spec = v
	present := v.object(map[string]func(value){
		"config":      func(v value) { v.configPaths(t) },
		"network":     func(v value) { v.network(&t.Network) },
		"trustDomain": func(v value) { v.trustDomain(&t.TrustDomain) },
		"mesh":        func(v value) { v.meshConfig(t) },
		"workloads": func(v value) {
			for _, item := range v.list() {
				t.Workloads = append(t.Workloads, item.workload())
			}
		},
	})
	v.require(present, "workloads", "workloads: and a list of them")
}

// configPaths reads one path or a list of paths.
func (v value) configPaths(t *Topology) {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = v.list()
	}
	for _, item := range items {
		if path := item.filePath(t); path != "" {
			t.Config = append(t.Config, path)
		}
	}
}

// filePath reads a path relative to the topology file's directory. It returns "" if there is none.
func (v value) filePath(t *Topology) string {
	var path string
	v.string(&path)
	if path == "" {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(t.BaseDir(), path)
	}
	t.fileRefs = append(t.fileRefs, fileReference{v, path})
	return path
}

// fileReference is a path in the topology file, with its position.
type fileReference struct {
	value
	file string
}

// CheckFiles returns an error that lists the missing files and directories of the topology with their positions.
func (t *Topology) CheckFiles() error {
	doc := &document{file: t.File}
	t.checkFiles(doc)
	return doc.err()
}

func (t *Topology) checkFiles(doc *document) {
	for _, ref := range t.fileRefs {
		if _, err := os.Stat(ref.file); err != nil {
			ref.doc = doc
			ref.problem("create the file, or fix the path, which is relative to the topology file's directory", "%s cannot be read: %v", ref.file, errors.Unwrap(err))
		}
	}
}
