package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// readJSON parses one or more JSON documents into YAML nodes. The YAML parser cannot read them, because it does not
// support all JSON escapes. readJSON returns false if data is not JSON: it may then be YAML in flow style.
func readJSON(data []byte) ([]*yaml.Node, bool) {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	if len(trimmed) == 0 || (trimmed[0] != '{' && trimmed[0] != '[') || !jsonStream(data) {
		return nil, false
	}
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data}
	r.dec.UseNumber()
	for i, b := range data {
		if b == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	var roots []*yaml.Node
	for {
		node, err := r.value(0)
		if errors.Is(err, io.EOF) {
			return roots, true
		}
		if err != nil {
			return nil, false
		}
		roots = append(roots, node)
	}
}

func jsonStream(data []byte) bool {
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var skip json.RawMessage
		if err := dec.Decode(&skip); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

type jsonReader struct {
	dec   *json.Decoder
	data  []byte
	lines []int // offsets at which the second and later lines begin
}

var errTooDeep = errors.New("nested too deeply")

func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	node := &yaml.Node{}
	node.Line, node.Column = r.position()
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if depth > 10*maxNesting {
			return nil, errTooDeep
		}
		return node, r.fill(node, t, depth)
	case string:
		node.Kind, node.Tag, node.Value, node.Style = yaml.ScalarNode, "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		node.Kind, node.Tag, node.Value = yaml.ScalarNode, "!!float", t.String()
		if _, err := t.Int64(); err == nil {
			node.Tag = "!!int"
		}
	case bool:
		node.Kind, node.Tag, node.Value = yaml.ScalarNode, "!!bool", fmt.Sprint(t)
	case nil:
		node.Kind, node.Tag, node.Value = yaml.ScalarNode, "!!null", "null"
	}
	return node, nil
}

func (r *jsonReader) fill(node *yaml.Node, open json.Delim, depth int) error {
	node.Kind, node.Tag, node.Style = yaml.SequenceNode, "!!seq", yaml.FlowStyle
	if open == '{' {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for r.dec.More() {
		child, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		node.Content = append(node.Content, child)
	}
	_, err := r.dec.Token()
	return err
}

// position returns the position of the next token.
func (r *jsonReader) position() (line, column int) {
	at := int(r.dec.InputOffset())
	for at < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[at]) >= 0 {
		at++
	}
	line = sort.SearchInts(r.lines, at+1)
	begin := 0
	if line > 0 {
		begin = r.lines[line-1]
	}
	return line + 1, utf8.RuneCount(r.data[begin:at]) + 1
}
