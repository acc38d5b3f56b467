// Package jsonyaml writes JSON documents as YAML, so that a report has the same field names and order in both formats.
package jsonyaml

import (
	"io"

	"go.yaml.in/yaml/v3"
)

// Write writes the JSON document as YAML in block style.
func Write(w io.Writer, text []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	blockStyle(&doc)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return err
	}
	return e.Close()
}

// blockStyle changes nodes from the flow style of JSON to YAML's block style.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		blockStyle(child)
	}
}
