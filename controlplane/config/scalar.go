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

// mark remembers where a field stands: a scalar at its value, a mapping or list at its name.
func (d *document) mark(path string, key, value *yaml.Node) {
	if value.Kind == yaml.ScalarNode {
		d.places[path] = d.at(value)
	} else {
		d.places[path] = d.at(key)
	}
}

// fields reads a mapping whose fields are those of the list: read is called with each that has a value.
func (d *document) fields(n *yaml.Node, path string, allowed []string, read func(name string, value *yaml.Node, path string)) {
	if !d.isMapping(n, path) {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		name := resolve(key).Value
		at := path + "." + name
		if !contains(allowed, name) {
			d.refuseAs(NoSuchField, d.at(key), at, "", "unknown field", didYouMean(name, allowed))
			continue
		}
		d.mark(at, key, value)
		if !isNull(value) {
			read(name, value, at)
		}
	}
}

func (d *document) isMapping(n *yaml.Node, path string) bool {
	if n.Kind != yaml.MappingNode {
		d.refuse(n, path, n.Value, "expected fields, found "+describe(n), "write one `name: value` a line below it")
		return false
	}
	return true
}

func (d *document) isList(n *yaml.Node, path string) bool {
	if n.Kind != yaml.SequenceNode {
		d.refuse(n, path, n.Value, "expected a list, found "+describe(n), "begin each item with \"- \"")
		return false
	}
	return true
}

// describe names what a node is in words of its author.
func describe(n *yaml.Node) string {
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

// text reads text. A number or truth value is not taken for one: what is written 1.10 would else become 1.1.
func (d *document) text(n *yaml.Node, path string) (string, bool) {
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!int", "!!float", "!!bool":
			d.refuse(n, path, n.Value, "expected text, found "+describe(n), fmt.Sprintf("put it in quotes: %q", n.Value))
			return "", false
		}
		d.tellIfAmbiguous(n, path)
		return n.Value, true
	}
	d.refuse(n, path, "", "expected text, found "+describe(n), "write the text behind the colon")
	return "", false
}

// textMap reads a mapping of text to text.
func (d *document) textMap(n *yaml.Node, path string) map[string]string {
	if !d.isMapping(n, path) {
		return nil
	}
	out := make(map[string]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]).Value, resolve(n.Content[i+1])
		at := path + "[" + key + "]"
		d.mark(at, n.Content[i], value)
		d.tellIfAmbiguous(resolve(n.Content[i]), at)
		if isNull(value) {
			out[key] = ""
		} else if text, ok := d.text(value, at); ok {
			out[key] = text
		}
	}
	return out
}

// truthOf gives what a word without quotes says in YAML 1.1, which most tools of the field speak, beside true and false.
// In YAML 1.2 it is text.
func truthOf(n *yaml.Node) (value, ok bool) {
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

// tellIfAmbiguous warns of text, or the name of an entry, that other readers take for true or false.
func (d *document) tellIfAmbiguous(n *yaml.Node, path string) {
	if truth, ok := truthOf(n); ok {
		d.reportAs(AmbiguousWord, Warning, d.at(n), path, n.Value,
			fmt.Sprintf("it is taken for text; kubectl and Istio take it for %t", truth), fmt.Sprintf("put it in quotes: %q", n.Value))
	}
}

// truth is truthOf for a value that is not text. It tells how the word was taken.
func (d *document) truth(n *yaml.Node, s Severity, path string) (value, ok bool) {
	if value, ok = truthOf(n); ok {
		d.reportAs(AmbiguousWord, s, d.at(n), path, n.Value, fmt.Sprintf("it is taken for %t, as by kubectl and Istio; other readers of YAML take it for text", value),
			fmt.Sprintf("write %t, or, if text is meant, %q", value, n.Value))
	}
	return value, ok
}

func (d *document) bool(n *yaml.Node, path string) (value, ok bool) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" && n.Decode(&value) == nil {
		return value, true
	}
	if value, ok = d.truth(n, Info, path); ok {
		return value, true
	}
	d.refuse(n, path, n.Value, "expected true or false, found "+describe(n), "write true or false, without quotes")
	return false, false
}

// whole reads a whole number between two bounds.
func (d *document) whole(n *yaml.Node, path string, low, high int64) (int64, bool) {
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
		d.refuse(n, path, n.Value, fmt.Sprintf("not between %d and %d", low, high), "give a number in this range")
	default:
		return value, true
	}
	return 0, false
}

func describeNumber(n *yaml.Node) string {
	if n.ShortTag() == "!!float" {
		return "a fraction"
	}
	return describe(n)
}

func isDigits(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

func (d *document) real(n *yaml.Node, path string) (float64, bool) {
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
	d.refuse(n, path, n.Value, "expected a number, found "+describe(n), remedy)
	return 0, false
}

func (d *document) bytes(n *yaml.Node, path string) ([]byte, bool) {
	text, ok := d.text(n, path)
	if !ok {
		return nil, false
	}
	value, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		d.refuse(n, path, text, "not base64", "encode it, or give it as text in the field for text")
		return nil, false
	}
	return value, true
}

// duration reads a length of time as Istio does: numbers with units, 1h30m or 0.5s.
func (d *document) duration(n *yaml.Node, path string) (time.Duration, bool) {
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
