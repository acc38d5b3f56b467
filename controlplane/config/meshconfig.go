package config

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
)

// ReadMesh parses and validates an Istio MeshConfig file. It returns nil and the first error if the file is invalid,
// and otherwise the mesh and its warnings. Problems have line numbers.
func ReadMesh(file string, text []byte) (*meshconfig.MeshConfig, []Problem) {
	mesh := &meshconfig.MeshConfig{}
	if _, err := protoyaml.Unmarshal(string(text), mesh); err != nil {
		return nil, []Problem{meshProblem(file, text, err.Error(), "use the fields of Istio's MeshConfig")}
	}
	warnings, err := CheckMesh(mesh)
	if err != nil {
		return nil, []Problem{meshProblem(file, text, err.Error(), "fix the reported field")}
	}
	for i, w := range warnings {
		warnings[i].At = Position{File: file, Line: fieldLine(text, w.Field)}
	}
	return mesh, warnings
}

var lineInMessage = regexp.MustCompile(`\bline (\d+): `)

func meshProblem(file string, text []byte, message, remedy string) Problem {
	p := Problem{Code: MeshConfigRefused, Severity: Error, At: Position{File: file}, Message: message, Remedy: remedy}
	if m := lineInMessage.FindStringSubmatch(message); m != nil {
		p.At.Line, _ = strconv.Atoi(m[1])
	} else if field := fieldInMessage.FindString(message); field != "" {
		p.At.Line = fieldLine(text, field)
	}
	return p
}

// fieldInMessage matches the field path at the beginning of an error message.
var fieldInMessage = regexp.MustCompile(`^[a-zA-Z]\w*(\.\w+|\[\d+\])*`)

func fieldLine(text []byte, path string) int {
	var root yaml.Node
	if yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
		return 0
	}
	return FindLine(root.Content[0], path)
}

// FindLine returns the line of the field at path (a.b[0].c), or of its nearest existing parent. It returns 0 if neither
// exists.
func FindLine(node *yaml.Node, path string) int {
	line := 0
	for step := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		at, value := lookupChild(followAlias(node), step)
		if value == nil {
			return line
		}
		node, line = value, at.Line
	}
	return line
}

// lookupChild returns the field or list item of n that step names, and the node whose position is reported for it: the
// field's name or the item. It returns nil if n has no such child.
func lookupChild(n *yaml.Node, step string) (at, value *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
		return nil, nil
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if name := n.Content[i].Value; name == step || strings.EqualFold(strings.ReplaceAll(name, "_", ""), step) { // JSON or proto name
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
