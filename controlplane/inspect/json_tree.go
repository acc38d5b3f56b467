package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
)

// tree is a JSON value with camelCase field names. The control plane sends such names (protojson). parseTree converts
// the names in Envoy's dumps to this form.
type tree struct{ v any }

func parseTree(data []byte) (tree, error) {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return tree{}, err
	}
	return tree{camelCaseKeys(v)}, nil
}

func camelCaseKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[camelCaseKey(key)] = camelCaseKeys(value)
		}
		return out
	case []any:
		for i := range v {
			v[i] = camelCaseKeys(v[i])
		}
	}
	return v
}

func camelCaseKey(key string) string {
	if strings.ContainsAny(key, ".-/") || !strings.Contains(key, "_") {
		return key // it is not a field name, so it is not converted
	}
	parts := strings.Split(key, "_")
	for i, part := range parts[1:] {
		if part != "" {
			parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return strings.Join(parts, "")
}

// lookup returns the value at a path of fields. It returns an empty tree if there is none.
func (t tree) lookup(path ...string) tree {
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
	data, _ := json.Marshal(t.v) // cannot fail for parsed JSON
	return string(data)
}

func (t tree) texts() []string {
	var out []string
	for _, item := range t.list() {
		out = append(out, item.text())
	}
	return out
}

// address formats an Envoy address as "10.0.0.1:80".
func (t tree) address() string {
	if s := t.lookup("socketAddress"); s.v != nil {
		return s.lookup("address").text() + ":" + s.lookup("portValue").text()
	}
	if p := t.lookup("pipe", "path").text(); p != "" {
		return "unix://" + p
	}
	return t.lookup("envoyInternalAddress", "serverListenerName").text()
}
