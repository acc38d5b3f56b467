package config

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
)

// ReadMesh reads a file of Istio's MeshConfig and gives what is to be said of it, at its places. Where there is a problem
// of severity Error, the first one, the mesh is nil.
func ReadMesh(file string, text []byte) (*meshconfig.MeshConfig, []Problem) {
	mesh := &meshconfig.MeshConfig{}
	if _, err := protoyaml.Unmarshal(string(text), mesh); err != nil {
		return nil, []Problem{badMesh(file, text, err.Error(), "the fields are those of Istio's MeshConfig")}
	}
	warnings, err := CheckMesh(mesh)
	if err != nil {
		return nil, []Problem{badMesh(file, text, err.Error(), "mend the file")}
	}
	for i, w := range warnings {
		warnings[i].At = Position{File: file, Line: lineOfField(text, w.Field)}
	}
	return mesh, warnings
}

var lineInMessage = regexp.MustCompile(`\bline (\d+): `)

func badMesh(file string, text []byte, message, remedy string) Problem {
	p := Problem{Code: MeshConfigBad, Severity: Error, At: Position{File: file}, Message: message, Remedy: remedy}
	if m := lineInMessage.FindStringSubmatch(message); m != nil {
		p.At.Line, _ = strconv.Atoi(m[1])
	} else if field := fieldInMessage.FindString(message); field != "" {
		p.At.Line = lineOfField(text, field)
	}
	return p
}

// fieldInMessage is the path of a field that a message begins with.
var fieldInMessage = regexp.MustCompile(`^[a-zA-Z]\w*(\.\w+|\[\d+\])*`)

func lineOfField(text []byte, path string) int {
	var root yaml.Node
	if yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
		return 0
	}
	return LineOf(root.Content[0], path)
}

// LineOf is where the field of a path like a.b[0].c stands in a node, or as much of the path as there is; 0 when nothing is.
func LineOf(node *yaml.Node, path string) int {
	line := 0
	for step := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		at, value := child(resolve(node), step)
		if value == nil {
			return line
		}
		node, line = value, at.Line
	}
	return line
}

// child is what a mapping has for a name, or a list at an index, and the node that stands where it begins.
func child(n *yaml.Node, step string) (at, value *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
		return nil, nil
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if name := n.Content[i].Value; name == step || strings.EqualFold(strings.ReplaceAll(name, "_", ""), step) { // by either of its names
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
