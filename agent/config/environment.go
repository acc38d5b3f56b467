package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// environment reads settings from variables and records the source of each value. It collects all errors, so that they
// are reported together.
type environment struct {
	vars       map[string]string
	settings   []Setting
	warnings   []string
	errs       []error
	missingErr error // reports missing input that may appear later, so that a restart can succeed
}

func newEnvironment(env []string) *environment {
	e := &environment{vars: make(map[string]string, len(env))}
	for _, pair := range env {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
			e.vars[name] = value
		}
	}
	return e
}

func (e *environment) err() error {
	if len(e.errs) == 0 {
		return e.missingErr
	}
	return errors.Join(e.errs...)
}

func (e *environment) addSetting(name string, value any, source string) {
	e.settings = append(e.settings, Setting{Name: name, Value: maskValue(name, fmt.Sprint(value)), Source: source})
}

func (e *environment) warn(format string, args ...any) {
	e.warnings = append(e.warnings, fmt.Sprintf(format, args...))
}

func (e *environment) addValueError(variable, value, remedy string) {
	e.errs = append(e.errs, fmt.Errorf("environment %s: %q: %s", variable, maskValue(variable, value), remedy))
}

// variableSource returns the source text of a variable that is set, and the default source otherwise.
func (e *environment) variableSource(variable string) string {
	if e.vars[variable] == "" {
		return sourceDefault
	}
	return "environment " + variable
}

// text returns the variable's value. If the variable is empty, it returns fallback and records fallbackSource.
func (e *environment) text(name, variable, fallback, fallbackSource string) string {
	value, source := fallback, fallbackSource
	if set := e.vars[variable]; set != "" {
		value, source = set, "environment "+variable
	}
	e.addSetting(name, value, source)
	return value
}

// choice returns a value that must be one of allowed.
func (e *environment) choice(name, variable, fallback string, allowed ...string) string {
	value := e.text(name, variable, fallback, sourceDefault)
	if !slices.Contains(allowed, value) {
		e.addValueError(variable, value, "use one of "+strings.Join(allowed, ", "))
		return fallback
	}
	return value
}

func parseVariable[T any](e *environment, name, variable string, fallback T, remedy string, parse func(string) (T, error)) T {
	text := strings.TrimSpace(e.vars[variable])
	if text == "" {
		e.addSetting(name, fallback, sourceDefault)
		return fallback
	}
	value, err := parse(text)
	if err != nil {
		e.addValueError(variable, text, remedy)
		value = fallback
	}
	e.addSetting(name, value, "environment "+variable)
	return value
}

func (e *environment) boolean(name, variable string, fallback bool) bool {
	return parseVariable(e, name, variable, fallback, "write true or false", strconv.ParseBool)
}

func (e *environment) duration(name, variable string, fallback time.Duration) time.Duration {
	return parseVariable(e, name, variable, fallback, "write a duration that is not negative, such as 5s or 24h",
		func(s string) (time.Duration, error) {
			d, err := time.ParseDuration(s)
			if err == nil && d < 0 {
				err = strconv.ErrRange
			}
			return d, err
		})
}

func (e *environment) port(name, variable string, fallback uint32) uint32 {
	return parseVariable(e, name, variable, fallback, "write a port from 1 to 65535", func(s string) (uint32, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err == nil && n == 0 {
			err = strconv.ErrRange
		}
		return uint32(n), err
	})
}

func (e *environment) ratio(name, variable string, fallback float64) float64 {
	return parseVariable(e, name, variable, fallback, "write a number from 0 to 1", func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err == nil && !(f >= 0 && f <= 1) {
			err = strconv.ErrRange
		}
		return f, err
	})
}

// address returns an IP address; the zero value if the variable is empty.
func (e *environment) address(name, variable string) netip.Addr {
	text := e.vars[variable]
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		e.addValueError(variable, text, "write an IP address, such as 10.1.2.3")
		return netip.Addr{}
	}
	e.addSetting(name, a, "environment "+variable)
	return a.Unmap()
}

// withPrefix returns the variables that begin with prefix, with the prefix removed from the names.
func (e *environment) withPrefix(prefix string) map[string]string {
	found := map[string]string{}
	for name, value := range e.vars {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			found[rest] = value
		}
	}
	return found
}

// headerName matches the allowed gRPC header names.
var headerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z_.-]+$`) })

// headers returns the gRPC headers that are configured by variables PREFIX<header name>. The list of settings contains
// only the names of the headers, because their values may be secret.
func (e *environment) headers(prefix string) map[string]string {
	found := e.withPrefix(prefix)
	for _, name := range sortedKeys(found) {
		if !headerName().MatchString(name) || strings.HasPrefix(strings.ToLower(name), "grpc-") || strings.HasSuffix(strings.ToLower(name), "-bin") {
			e.addValueError(prefix+name, maskedValue, "write a gRPC header name after "+prefix+"; names with the prefix grpc- or the suffix -bin are not allowed")
		}
		if strings.ContainsFunc(found[name], func(r rune) bool { return r < ' ' || r > '~' }) {
			e.addValueError(prefix+name, maskedValue, "use only printable ASCII characters in a header value")
		}
		e.addSetting("header "+name, maskedValue, "environment "+prefix+name)
	}
	return found
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
