package gotemplate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

type entry struct{ key, value any }

// entriesOf returns the entries for a range action. Maps are sorted by key.
func entriesOf(value any) ([]entry, error) {
	var all []entry
	switch v := value.(type) {
	case nil:
	case []any:
		for i, e := range v {
			all = append(all, entry{int64(i), e})
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, entry{key, v[key]})
		}
	case int64:
		if v > maxSteps {
			return nil, fmt.Errorf("a range over %d has too many steps", v)
		}
		for i := range v {
			all = append(all, entry{i, i})
		}
	default:
		return nil, fmt.Errorf("cannot range over a %s", kind(value))
	}
	return all, nil
}

// isTrue reports whether a value is not empty, as in text/template.
func isTrue(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case Raw:
		return v != ""
	case int64:
		return v != 0
	case float64:
		return v != 0
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

func kind(value any) string {
	switch value.(type) {
	case nil:
		return "missing value"
	case bool:
		return "boolean"
	case string, Raw:
		return "text"
	case int64, float64:
		return "number"
	case []any:
		return "list"
	case map[string]any:
		return "map"
	}
	return fmt.Sprintf("%T", value)
}

// formatOutput returns a value's text in the output of an action.
func formatOutput(value any) string {
	if s, ok := value.(string); ok {
		return escapeJSON(s)
	}
	return text(value)
}

// escapeJSON escapes a text for use within quotes in JSON and YAML.
func escapeJSON(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // encoding a string cannot fail
	quoted := strings.TrimSuffix(b.String(), "\n")
	return quoted[1 : len(quoted)-1]
}

// text formats a value as package fmt does.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case Raw:
		return string(v)
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = text(e)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, key+":"+text(v[key]))
		}
		return "map[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(value)
}

// toNumber converts a number or a numeric string.
func toNumber(value any) (float64, error) {
	switch v := value.(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case string, Raw:
		if f, err := strconv.ParseFloat(strings.TrimSpace(text(v)), 64); err == nil {
			return f, nil
		}
	}
	return 0, fmt.Errorf("%.50q is not a number", text(value))
}

// wholeToInt converts a whole number to int64 and returns other numbers unchanged.
func wholeToInt(f float64) any {
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return int64(f)
	}
	return f
}

// unwrapRaw replaces each Raw in a value by a string, for encoding.
func unwrapRaw(value any) any {
	switch v := value.(type) {
	case Raw:
		return string(v)
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = unwrapRaw(e)
		}
		return list
	case map[string]any:
		m := make(map[string]any, len(v))
		for key, e := range v {
			m[key] = unwrapRaw(e)
		}
		return m
	}
	return value
}

// sizeOf returns the approximate size of a value's text. It stops at bound, because a list may contain the same list
// many times.
func sizeOf(value any, bound int) int {
	size := 1
	switch v := value.(type) {
	case string:
		return len(v)
	case Raw:
		return len(v)
	case []any:
		for _, e := range v {
			if size += sizeOf(e, bound-size); size >= bound {
				return size
			}
		}
	case map[string]any:
		for key, e := range v {
			if size += len(key) + sizeOf(e, bound-size); size >= bound {
				return size
			}
		}
	}
	return size
}

// compare returns a negative number, zero or a positive number if a is less than, equal to or greater than b. It
// compares strings with strings and numbers with numbers.
func compare(a, b any) (int, error) {
	an, bn := isNumber(a), isNumber(b)
	switch {
	case an && bn:
		x, _ := toNumber(a)
		y, _ := toNumber(b)
		switch {
		case x < y:
			return -1, nil
		case x > y:
			return 1, nil
		}
		return 0, nil
	case isText(a) && isText(b):
		return strings.Compare(text(a), text(b)), nil
	}
	return 0, fmt.Errorf("a %s and a %s cannot be compared", kind(a), kind(b))
}

func equal(a, b any) bool {
	if order, err := compare(a, b); err == nil {
		return order == 0
	}
	return reflect.DeepEqual(unwrapRaw(a), unwrapRaw(b))
}

func isNumber(v any) bool {
	switch v.(type) {
	case int64, float64:
		return true
	}
	return false
}

func isText(v any) bool {
	switch v.(type) {
	case string, Raw:
		return true
	}
	return false
}

func sameMap(m map[string]any, other any) bool {
	o, ok := other.(map[string]any)
	return ok && reflect.ValueOf(m).Pointer() == reflect.ValueOf(o).Pointer()
}
