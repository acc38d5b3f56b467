package gotemplate

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// builtins contains the functions of text/template and of Istio's bootstrap, and the sprig functions that bootstrap
// templates use.
var builtins = map[string]Func{
	"not":      func(a ...any) (any, error) { return !isTrue(argOrNil(a, 0)), nil },
	"len":      length,
	"index":    index,
	"eq":       equalToAny,
	"ne":       func(a ...any) (any, error) { return len(a) == 2 && !equal(a[0], a[1]), checkArgCount(a, 2) },
	"lt":       comparison(func(o int) bool { return o < 0 }),
	"le":       comparison(func(o int) bool { return o <= 0 }),
	"gt":       comparison(func(o int) bool { return o > 0 }),
	"ge":       comparison(func(o int) bool { return o >= 0 }),
	"print":    func(a ...any) (any, error) { return Raw(fmt.Sprint(unwrapRaw(a).([]any)...)), nil },
	"println":  func(a ...any) (any, error) { return Raw(fmt.Sprintln(unwrapRaw(a).([]any)...)), nil },
	"printf":   printf,
	"js":       oneArgFunc(javaScript),
	"urlquery": oneArgFunc(url.QueryEscape),

	"toJSON":       toJSON,
	"toJson":       toJSON,
	"toRawJson":    toJSON,
	"toPrettyJson": toPrettyJSON,
	"fromJson":     fromJSON,

	"default": func(a ...any) (any, error) {
		return choose(isTrue(argOrNil(a, 1)), argOrNil(a, 1), argOrNil(a, 0)), checkArgCount(a, 2)
	},
	"empty":    func(a ...any) (any, error) { return !isTrue(argOrNil(a, 0)), nil },
	"coalesce": coalesce,
	"ternary": func(a ...any) (any, error) {
		return choose(isTrue(argOrNil(a, 2)), argOrNil(a, 0), argOrNil(a, 1)), checkArgCount(a, 3)
	},
	"quote":      func(a ...any) (any, error) { return Raw(quoted(a)), nil },
	"squote":     oneArgFunc(func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }),
	"upper":      oneArgFunc(strings.ToUpper),
	"lower":      oneArgFunc(strings.ToLower),
	"trim":       oneArgFunc(strings.TrimSpace),
	"toString":   oneArgFunc(func(s string) string { return s }),
	"b64enc":     oneArgFunc(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
	"b64dec":     base64Decode,
	"trimPrefix": twoArgFunc(func(cut, s string) any { return Raw(strings.TrimPrefix(s, cut)) }),
	"trimSuffix": twoArgFunc(func(cut, s string) any { return Raw(strings.TrimSuffix(s, cut)) }),
	"contains":   twoArgFunc(func(part, s string) any { return strings.Contains(s, part) }),
	"hasPrefix":  twoArgFunc(func(start, s string) any { return strings.HasPrefix(s, start) }),
	"hasSuffix":  twoArgFunc(func(end, s string) any { return strings.HasSuffix(s, end) }),
	"splitList":  twoArgFunc(func(by, s string) any { return parts(strings.Split(s, by)) }),
	"replace":    replace,
	"join":       join,
	"list":       func(a ...any) (any, error) { return slices.Clone(a), nil },
	"dict":       dict,
	"get": func(a ...any) (any, error) {
		return entriesIn(argOrNil(a, 0))[text(argOrNil(a, 1))], checkArgCount(a, 2)
	},
	"hasKey": hasKey,
	"keys": func(a ...any) (any, error) {
		return parts(slices.Sorted(maps.Keys(entriesIn(argOrNil(a, 0))))), checkArgCount(a, 1)
	},
	"first": func(a ...any) (any, error) { return end(a, false) },
	"last":  func(a ...any) (any, error) { return end(a, true) },
	"int":   toInt,
	"int64": toInt,
	"atoi":  toInt,
	"add":   fold(func(x, y float64) float64 { return x + y }),
	"sub":   fold(func(x, y float64) float64 { return x - y }),
	"mul":   fold(func(x, y float64) float64 { return x * y }),
}

// argOrNil returns an argument, or nil if it is missing.
func argOrNil(args []any, i int) any {
	if i < len(args) {
		return args[i]
	}
	return nil
}

func checkArgCount(args []any, n int) error {
	if len(args) != n {
		return fmt.Errorf("the function needs %d arguments, not %d", n, len(args))
	}
	return nil
}

func choose(first bool, a, b any) any {
	if first {
		return a
	}
	return b
}

func oneArgFunc(f func(string) string) Func {
	return func(args ...any) (any, error) { return Raw(f(text(argOrNil(args, 0)))), checkArgCount(args, 1) }
}

func twoArgFunc(f func(a, b string) any) Func {
	return func(args ...any) (any, error) {
		return f(text(argOrNil(args, 0)), text(argOrNil(args, 1))), checkArgCount(args, 2)
	}
}

func comparison(is func(int) bool) Func {
	return func(args ...any) (any, error) {
		if err := checkArgCount(args, 2); err != nil {
			return nil, err
		}
		o, err := compare(args[0], args[1])
		return is(o), err
	}
}

func fold(f func(x, y float64) float64) Func {
	return func(args ...any) (any, error) {
		if len(args) == 0 {
			return nil, errors.New("the arguments must be numbers")
		}
		result, err := toNumber(args[0])
		for _, a := range args[1:] {
			next, nextErr := toNumber(a)
			result, err = f(result, next), errors.Join(err, nextErr)
		}
		return wholeToInt(result), err
	}
}

func equalToAny(args ...any) (any, error) {
	if len(args) < 2 {
		return nil, errors.New("the function needs two or more arguments")
	}
	return slices.ContainsFunc(args[1:], func(v any) bool { return equal(args[0], v) }), nil
}

func length(args ...any) (any, error) {
	switch v := argOrNil(args, 0).(type) {
	case nil:
		return int64(0), checkArgCount(args, 1)
	case []any:
		return int64(len(v)), checkArgCount(args, 1)
	case map[string]any:
		return int64(len(v)), checkArgCount(args, 1)
	case string, Raw:
		return int64(len(text(v))), checkArgCount(args, 1)
	}
	return nil, fmt.Errorf("a %s has no length", kind(argOrNil(args, 0)))
}

func index(args ...any) (any, error) {
	value := argOrNil(args, 0)
	for _, key := range args[min(1, len(args)):] {
		switch v := value.(type) {
		case nil:
			return nil, nil
		case map[string]any:
			value = v[text(key)]
		case []any:
			i, ok := key.(int64)
			if !ok || i < 0 || i >= int64(len(v)) {
				return nil, fmt.Errorf("a list of %[2]d entries has no entry %[1]s", text(key), len(v))
			}
			value = v[i]
		default:
			return nil, fmt.Errorf("a %s has no entries", kind(value))
		}
	}
	return value, nil
}

func joined(args []any, by string) string {
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = text(a)
	}
	return strings.Join(texts, by)
}

func printf(args ...any) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("the first argument must be a format string")
	}
	format := text(args[0])
	if strings.ContainsAny(format, "*") {
		return nil, errors.New("a width from an argument (*) is not supported; write the width in the format string")
	}
	values := make([]any, len(args)-1)
	for i, a := range args[1:] {
		values[i] = unwrapRaw(a)
	}
	result := fmt.Sprintf(limitWidths(format), values...)
	return Raw(result), nil
}

// limitWidths limits widths in a format string to three digits. Larger widths would only use memory.
func limitWidths(format string) string {
	digits := 0
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			digits = 0
			return r
		}
		if digits++; digits > 3 {
			return -1
		}
		return r
	}, format)
}

var scripts = strings.NewReplacer(`\`, `\\`, `'`, `\'`, `"`, `\"`, "<", `\u003C`, ">", `\u003E`, "&", `\u0026`, "=", `\u003D`,
	"\n", `\u000A`, "\r", `\u000D`, "\t", `\u0009`)

func javaScript(s string) string { return scripts.Replace(s) }

func toJSON(args ...any) (any, error) {
	b, err := json.Marshal(unwrapRaw(argOrNil(args, 0)))
	if argOrNil(args, 0) == nil {
		b = []byte("{}")
	}
	return Raw(b), errors.Join(err, checkArgCount(args, 1))
}

func toPrettyJSON(args ...any) (any, error) {
	b, err := json.MarshalIndent(unwrapRaw(argOrNil(args, 0)), "", "  ")
	return Raw(b), errors.Join(err, checkArgCount(args, 1))
}

func fromJSON(args ...any) (any, error) {
	var value any
	if err := json.Unmarshal([]byte(text(argOrNil(args, 0))), &value); err != nil {
		return nil, err
	}
	return value, checkArgCount(args, 1)
}

func coalesce(args ...any) (any, error) {
	for _, a := range args {
		if isTrue(a) {
			return a, nil
		}
	}
	return nil, nil
}

func quoted(args []any) string {
	texts := make([]string, 0, len(args))
	for _, a := range args {
		if a != nil {
			texts = append(texts, `"`+escapeJSON(text(a))+`"`)
		}
	}
	return strings.Join(texts, " ")
}

func base64Decode(args ...any) (any, error) {
	b, err := base64.StdEncoding.DecodeString(text(argOrNil(args, 0)))
	return Raw(b), errors.Join(err, checkArgCount(args, 1))
}

func parts(texts []string) []any {
	list := make([]any, len(texts))
	for i, s := range texts {
		list[i] = s
	}
	return list
}

func replace(args ...any) (any, error) {
	if err := checkArgCount(args, 3); err != nil {
		return nil, err
	}
	old, with, s := text(args[0]), text(args[1]), text(args[2])
	if n := strings.Count(s, old); n*len(with)+len(s) > maxOutput {
		return nil, errors.New("the result would be too large")
	}
	return Raw(strings.ReplaceAll(s, old, with)), nil
}

func join(args ...any) (any, error) {
	if list, ok := argOrNil(args, 1).([]any); ok {
		return Raw(joined(list, text(args[0]))), nil
	}
	return Raw(text(argOrNil(args, 1))), checkArgCount(args, 2)
}

func dict(args ...any) (any, error) {
	m := map[string]any{}
	for i := 0; i < len(args); i += 2 {
		m[text(args[i])] = argOrNil(args, i+1)
	}
	return m, nil
}

func entriesIn(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func hasKey(args ...any) (any, error) {
	_, has := entriesIn(argOrNil(args, 0))[text(argOrNil(args, 1))]
	return has, checkArgCount(args, 2)
}

func end(args []any, last bool) (any, error) {
	list, ok := argOrNil(args, 0).([]any)
	switch {
	case !ok:
		return nil, fmt.Errorf("the argument must be a list, not a %s", kind(argOrNil(args, 0)))
	case len(list) == 0:
		return nil, nil
	case last:
		return list[len(list)-1], nil
	}
	return list[0], nil
}

func toInt(args ...any) (any, error) {
	f, err := toNumber(argOrNil(args, 0))
	if err != nil {
		return int64(0), nil // as in sprig
	}
	return int64(f), checkArgCount(args, 1)
}
