package config

import (
	"bytes"
	"slices"

	"go.yaml.in/yaml/v3"
)

// RemoveSecrets returns text, the content of a file, without its Kubernetes Secrets. It replaces unreadable documents
// that may be Secrets. The line numbers of other documents do not change, except in a List that contains a Secret.
func RemoveSecrets(text []byte) []byte {
	if !bytes.Contains(text, []byte("kind")) && !bytes.Contains(text, []byte(`\`)) {
		return text
	}
	var out bytes.Buffer
	lines := 0
	for _, c := range splitDocuments(text) {
		for ; lines < c.line; lines++ {
			out.WriteByte('\n')
		}
		kept := c.withoutSecrets()
		out.Write(kept)
		lines += bytes.Count(kept, []byte("\n"))
	}
	for ; lines < bytes.Count(text, []byte("\n")); lines++ {
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func (c chunk) withoutSecrets() []byte {
	nodes, err := readYAML(c.text)
	if err != nil {
		if bytes.Contains(c.text, []byte("Secret")) || bytes.Contains(c.text, []byte(`\`)) {
			return []byte("--- [ # a document that cannot be read, and may be a Secret\n")
		}
		return c.text
	}
	clean := true
	nodes = slices.DeleteFunc(nodes, func(n *yaml.Node) bool {
		secret, inside := removeSecrets(n, 0)
		clean = clean && !secret && !inside
		return secret
	})
	if clean {
		return c.text
	}
	var out bytes.Buffer
	for _, n := range nodes {
		text, err := yaml.Marshal(n)
		if err != nil {
			continue // cannot fail for a parsed node
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

// removeSecrets removes the Secrets from a List. secret is true if the document is a Secret itself, and inside is true
// if a Secret was removed from the List.
func removeSecrets(root *yaml.Node, nested int) (secret, inside bool) {
	if root.Kind != yaml.MappingNode {
		return false, false
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i].Value, followAlias(root.Content[i+1])
		switch {
		case name == "kind" && value.Value == string(Secret):
			return true, false
		case name == "items" && value.Kind == yaml.SequenceNode && nested < maxListNested:
			value.Content = slices.DeleteFunc(value.Content, func(item *yaml.Node) bool {
				one, within := removeSecrets(followAlias(item), nested+1)
				inside = inside || one || within
				return one
			})
		}
	}
	return false, inside
}
