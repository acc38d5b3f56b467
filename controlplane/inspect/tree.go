package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
)

// tree is JSON whose fields are in camelCase: protojson of the control plane has them so, and Envoy's own dumps, which
// have them with underscores, are made so.
type tree struct{ v any }

func parseTree(data []byte) (tree, error) {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return tree{}, err
	}
	return tree{camel(v)}, nil
}

func camel(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[camelKey(key)] = camel(value)
		}
		return out
	case []any:
		for i := range v {
			v[i] = camel(v[i])
		}
	}
	return v
}

func camelKey(key string) string {
	if strings.ContainsAny(key, ".-/") || !strings.Contains(key, "_") {
		return key // no field
	}
	parts := strings.Split(key, "_")
	for i, part := range parts[1:] {
		if part != "" {
			parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return strings.Join(parts, "")
}

// at follows fields; what is not there is an empty tree.
func (t tree) at(path ...string) tree {
	for _, key := range path {
		m, ok := t.v.(map[string]any)
		if !ok {
			return tree{}
		}
		t = tree{m[key]}
	}
	return t
}

func (t tree) has(key string) bool {
	m, ok := t.v.(map[string]any)
	_, has := m[key]
	return ok && has
}

func (t tree) list() []tree {
	items, _ := t.v.([]any)
	out := make([]tree, len(items))
	for i, item := range items {
		out[i] = tree{item}
	}
	return out
}

func (t tree) text() string {
	switch v := t.v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64, bool:
		return fmt.Sprint(v)
	}
	data, _ := json.Marshal(t.v) // of what was JSON
	return string(data)
}

func (t tree) texts() []string {
	var out []string
	for _, item := range t.list() {
		out = append(out, item.text())
	}
	return out
}

// address is "10.0.0.1:80" of an Envoy address.
func (t tree) address() string {
	if s := t.at("socketAddress"); s.v != nil {
		return s.at("address").text() + ":" + s.at("portValue").text()
	}
	if p := t.at("pipe", "path").text(); p != "" {
		return "unix://" + p
	}
	return t.at("envoyInternalAddress", "serverListenerName").text()
}
