package config

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

func contains(list []string, s string) bool { return slices.Contains(list, s) }

// setPosition records the position of the field at path: the position of its value if it is a scalar, and otherwise of
// its name.
func (d *document) setPosition(path string, key, value *yaml.Node) {
	if value.Kind == yaml.ScalarNode {
		d.positions[path] = d.nodePosition(value)
	} else {
		d.positions[path] = d.nodePosition(key)
	}
}

// readFields calls read for each field of the mapping n that is not null. It refuses fields that are not in allowed.
func (d *document) readFields(n *yaml.Node, path string, allowed []string, read func(name string, value *yaml.Node, path string)) {
	if !d.isMapping(n, path) {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], followAlias(n.Content[i+1])
		name := followAlias(key).Value
		at := path + "." + name
		if !contains(allowed, name) {
			d.refuseAs(NoSuchField, d.nodePosition(key), at, "", "unknown field", didYouMean(name, allowed))
			continue
		}
		d.setPosition(at, key, value)
		if !isNull(value) {
			read(name, value, at)
		}
	}
}

func (d *document) isMapping(n *yaml.Node, path string) bool {
	if n.Kind != yaml.MappingNode {
		d.refuse(n, path, n.Value, "expected fields, found "+describeNode(n), "write the fields below it, one `name: value` per line")
		return false
	}
	return true
}

func (d *document) isList(n *yaml.Node, path string) bool {
	if n.Kind != yaml.SequenceNode {
		d.refuse(n, path, n.Value, "expected a list, found "+describeNode(n), "begin each item with \"- \"")
		return false
	}
	return true
}

// describeNode describes the type of a node in user terms.
func describeNode(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	}
	return "text"
}

// readText returns the text of n. It refuses unquoted numbers and booleans, because other parsers read 1.10 as 1.1.
func (d *document) readText(n *yaml.Node, path string) (string, bool) {
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!int", "!!float", "!!bool":
			d.refuse(n, path, n.Value, "expected text, found "+describeNode(n), fmt.Sprintf("put it in quotes: %q", n.Value))
			return "", false
		}
		d.warnAmbiguous(n, path)
		return n.Value, true
	}
	d.refuse(n, path, "", "expected text, found "+describeNode(n), "write the text after the colon")
	return "", false
}

// readTextMap returns the fields of n, whose values must be text. A null value is "".
func (d *document) readTextMap(n *yaml.Node, path string) map[string]string {
	if !d.isMapping(n, path) {
		return nil
	}
	out := make(map[string]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := followAlias(n.Content[i]).Value, followAlias(n.Content[i+1])
		at := path + "[" + key + "]"
		d.setPosition(at, n.Content[i], value)
		d.warnAmbiguous(followAlias(n.Content[i]), at)
		if isNull(value) {
			out[key] = ""
		} else if text, ok := d.readText(value, at); ok {
			out[key] = text
		}
	}
	return out
}

// parseYAML11Bool returns the value of an unquoted word that is a boolean in YAML 1.1, which most tools use, and text
// in YAML 1.2. ok is false for other nodes, including true and false.
func parseYAML11Bool(n *yaml.Node) (value, ok bool) {
	if n.Kind != yaml.ScalarNode || n.Style != 0 {
		return false, false
	}
	switch n.Value {
	case "yes", "Yes", "YES", "on", "On", "ON", "y", "Y":
		return true, true
	case "no", "No", "NO", "off", "Off", "OFF", "n", "N":
		return false, true
	}
	return false, false
}

// warnAmbiguous warns of text or a key that other parsers read as a boolean.
func (d *document) warnAmbiguous(n *yaml.Node, path string) {
	if truth, ok := parseYAML11Bool(n); ok {
		d.reportAs(AmbiguousWord, Warning, d.nodePosition(n), path, n.Value,
			fmt.Sprintf("it is read as text; kubectl and Istio read it as %t", truth), fmt.Sprintf("put it in quotes: %q", n.Value))
	}
}

// readYAML11Bool is like parseYAML11Bool, but records a problem of severity s that explains how the word was read.
func (d *document) readYAML11Bool(n *yaml.Node, s Severity, path string) (value, ok bool) {
	if value, ok = parseYAML11Bool(n); ok {
		d.reportAs(AmbiguousWord, s, d.nodePosition(n), path, n.Value, fmt.Sprintf("it is read as %t, as by kubectl and Istio; other YAML parsers read it as text", value),
			fmt.Sprintf("write %t, or, if text is meant, %q", value, n.Value))
	}
	return value, ok
}

func (d *document) readBool(n *yaml.Node, path string) (value, ok bool) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" && n.Decode(&value) == nil {
		return value, true
	}
	if value, ok = d.readYAML11Bool(n, Info, path); ok {
		return value, true
	}
	d.refuse(n, path, n.Value, "expected true or false, found "+describeNode(n), "write true or false, without quotes")
	return false, false
}

// readInt returns the integer n. It refuses values that are not between low and high.
func (d *document) readInt(n *yaml.Node, path string, low, high int64) (int64, bool) {
	value, err := int64(0), error(strconv.ErrSyntax)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		if value, err = strconv.ParseInt(n.Value, 10, 64); err != nil || n.Value[0] == '0' {
			err = n.Decode(&value)
		}
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && isDigits(n.Value):
		d.refuse(n, path, n.Value, "expected a number, found text", "write it without quotes")
	case err != nil && n.ShortTag() != "!!int":
		d.refuse(n, path, n.Value, "expected a whole number, found "+describeNumber(n), "write digits only")
	case err != nil || value < low || value > high:
		d.refuse(n, path, n.Value, fmt.Sprintf("not between %d and %d", low, high), "set a number in this range")
	default:
		return value, true
	}
	return 0, false
}

func describeNumber(n *yaml.Node) string {
	if n.ShortTag() == "!!float" {
		return "a fraction"
	}
	return describeNode(n)
}

func isDigits(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

func (d *document) readFloat(n *yaml.Node, path string) (float64, bool) {
	if tag := n.ShortTag(); n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float") {
		var value float64
		if err := n.Decode(&value); err == nil && !math.IsInf(value, 0) && !math.IsNaN(value) {
			return value, true
		}
	}
	remedy := "write a number, as in 0.5"
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil {
		remedy = "write it without quotes"
	} else if strings.HasSuffix(n.Value, "%") {
		remedy = "write the number alone, without %"
	}
	d.refuse(n, path, n.Value, "expected a number, found "+describeNode(n), remedy)
	return 0, false
}

func (d *document) readBytes(n *yaml.Node, path string) ([]byte, bool) {
	text, ok := d.readText(n, path)
	if !ok {
		return nil, false
	}
	value, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		d.refuse(n, path, text, "not base64", "encode it, or set it as text in the field for text")
		return nil, false
	}
	return value, true
}

// readDuration returns the duration n. It must have units, as in 1h30m or 0.5s.
func (d *document) readDuration(n *yaml.Node, path string) (time.Duration, bool) {
	if n.Kind == yaml.ScalarNode {
		value, err := time.ParseDuration(n.Value)
		if err == nil && n.Value != "0" {
			return value, true
		}
		if _, err := strconv.ParseFloat(n.Value, 64); err == nil {
			d.refuse(n, path, n.Value, "a duration without a unit", "write "+n.Value+"s for seconds, or "+n.Value+"ms for milliseconds")
			return 0, false
		}
	}
	d.refuse(n, path, n.Value, "not a duration", "write a number with a unit, as in 500ms, 10s, 5m or 1h30m")
	return 0, false
}
