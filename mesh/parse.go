package mesh

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

// maxTopologySize is far above any real topology; a file given by mistake should not be read for minutes.
const maxTopologySize = 4 << 20

// InvalidError lists all that is wrong with a topology file.
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
		return nil, fmt.Errorf("reading the topology: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTopologySize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the topology: %w", err)
	}
	if len(data) > maxTopologySize {
		return nil, fmt.Errorf("reading the topology: %s is larger than %d bytes: is it the right file?", path, maxTopologySize)
	}
	return data, nil
}

// Parse reads the contents of a topology file. It does not look at the disk: whether the files that the topology names
// exist is for CheckFiles to say.
func Parse(file string, data []byte) (*Topology, error) {
	doc, t, err := read(file, data)
	if err != nil {
		return nil, err
	}
	if err := doc.invalid(); err != nil {
		return nil, err
	}
	t.fillDefaults()
	return t, nil
}

// read reads the topology as far as it can be read; what is wrong with it is in the document.
func read(file string, data []byte) (*document, *Topology, error) {
	doc := &document{file: file}
	root, err := rootNode(file, data)
	if err != nil {
		return nil, nil, err
	}
	t := doc.topology(value{doc: doc, node: root})
	doc.onlyNews(t.validate)
	return doc, t, nil
}

// onlyNews has more checks made, and drops what they find where something is wrong already: the field was not read then,
// and what they say of it would be wrong.
func (d *document) onlyNews(check func()) {
	before := len(d.problems)
	known := map[config.Position]bool{}
	for _, p := range d.problems {
		known[p.At] = true
	}
	check()
	found := d.problems[before:]
	d.problems = append(d.problems[:before:before], slices.DeleteFunc(found, func(p config.Problem) bool { return known[p.At] })...)
}

// invalid is the error that lists the document's problems in the order of the file, if there are any.
func (d *document) invalid() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b config.Problem) int {
		return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	return &InvalidError{File: d.file, Problems: d.problems}
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// rootNode is the one document of the file.
func rootNode(file string, data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, invalid(config.Position{File: file, Line: 1, Column: 1}, "the file is empty", "see docs/topology.md for what belongs here")
	}
	if err != nil {
		return nil, syntaxError(file, err)
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, invalid(config.Position{File: file, Line: next.Line, Column: next.Column}, "a second document begins here",
			"keep the topology alone in its file, and put Istio and Kubernetes documents where spec.config points")
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(file, err)
	}
	return doc.Content[0], nil
}

func syntaxError(file string, err error) error {
	m := yamlErrorLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m == nil {
		return invalid(config.Position{File: file}, "not YAML: "+err.Error(), "")
	}
	line, _ := strconv.Atoi(m[1])
	return invalid(config.Position{File: file, Line: line}, "not YAML: "+m[2], "look at the indentation and the quotes around this line")
}

func invalid(at config.Position, message, remedy string) error {
	return &InvalidError{File: at.File, Problems: []config.Problem{{
		Severity: config.Error, At: at, Message: message, Remedy: remedy,
	}}}
}

func (d *document) topology(v value) *Topology {
	t := &Topology{File: d.file, Mesh: &meshconfig.MeshConfig{}}
	var apiVersion, kind string
	given := v.object(map[string]func(value){
		"apiVersion": func(v value) { v.oneOf(&apiVersion, APIVersion) },
		"kind":       func(v value) { v.oneOf(&kind, Kind) },
		"metadata": func(v value) {
			v.object(map[string]func(value){"name": func(v value) { v.meshName(&t.Name) }})
		},
		"spec": func(v value) { d.spec(v, t) },
	})
	v.require(given, "apiVersion", "apiVersion: "+APIVersion)
	v.require(given, "kind", "kind: "+Kind)
	v.require(given, "spec", "spec: with config and workloads")
	if t.Name == "" && len(d.problems) == 0 {
		v.problem("add metadata: {name: my-mesh}", "metadata.name is missing")
	}
	return t
}

// require notes the lack of a field.
func (v value) require(given map[string]bool, field, example string) {
	if v.node.Kind == yaml.MappingNode && !given[field] {
		v.doc.problems = append(v.doc.problems, config.Problem{
			Severity: config.Error, At: v.at(), Field: v.join(field),
			Message: "the field is missing", Remedy: "add " + example,
		})
	}
}

func (d *document) spec(v value, t *Topology) {
	t.spec = v
	given := v.object(map[string]func(value){
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
	v.require(given, "workloads", "workloads: and a list of them")
}

// configPaths reads one path or a list of them.
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

// filePath reads a path, which starts at the topology file's folder; empty when there is none.
func (v value) filePath(t *Topology) string {
	var path string
	v.string(&path)
	if path == "" {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(t.baseDir(), path)
	}
	t.places = append(t.places, fileReference{v, path})
	return path
}

// fileReference is a path that the topology names, and where.
type fileReference struct {
	value
	file string
}

// CheckFiles says whether the files and directories that the topology names exist, with the place of each that does not.
func (t *Topology) CheckFiles() error {
	doc := &document{file: t.File}
	t.checkFiles(doc)
	return doc.invalid()
}

func (t *Topology) checkFiles(doc *document) {
	for _, ref := range t.places {
		if _, err := os.Stat(ref.file); err != nil {
			ref.doc = doc
			ref.problem("create it, or mend the path: it starts at the topology file's folder", "%s cannot be read: %v", ref.file, errors.Unwrap(err))
		}
	}
}
