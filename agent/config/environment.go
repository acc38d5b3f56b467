package config

import (
	"errors"
	"fmt"
	"math"
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
	vars     map[string]string
	settings []Setting
	warnings []string
	errs     []error
	// missingErr reports a missing input that may appear later, so that a restart of the agent can succeed.
	missingErr error
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
	if w := fmt.Sprintf(format, args...); !slices.Contains(e.warnings, w) {
		e.warnings = append(e.warnings, w)
	}
}

func (e *environment) addValueError(variable, value, remedy string) {
	e.errs = append(e.errs, fmt.Errorf("environment %s: %q: %s", variable, maskValue(variable, value), remedy))
}

// warnValue adds a warning about an invalid value that Istio's agent tolerates. effect describes what applies instead.
func (e *environment) warnValue(variable, value, remedy, effect string) {
	e.warn("environment %s: %q: %s; %s", variable, maskValue(variable, value), remedy, effect)
}

// errRefused reports a value with which Istio's agent does not start either, or never becomes ready.
var errRefused = errors.New("refused")

// rejectValue adds a warning for an invalid value that Istio's agent replaces by the default, and an error for other
// invalid values. A pod that starts with Istio's agent must start with this one.
func (e *environment) rejectValue(variable, value, remedy string, fallback any, err error) {
	if isIstioVariable(variable) && !errors.Is(err, errRefused) {
		e.warnValue(variable, value, remedy, fmt.Sprintf("the default %v applies", fallback))
		return
	}
	e.addValueError(variable, value, remedy)
}

// variableSource returns the source of a setting that variable sets. If variable is empty, it returns sourceDefault.
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

// choice returns the variable's value, which must be one of allowed. If the variable is empty or invalid, it returns
// fallback.
func (e *environment) choice(name, variable, fallback string, allowed ...string) string {
	return parseVariable(e, name, variable, fallback, "use one of "+strings.Join(allowed, ", "), func(s string) (string, error) {
		if !slices.Contains(allowed, s) {
			return "", strconv.ErrSyntax
		}
		return s, nil
	})
}

func parseVariable[T any](e *environment, name, variable string, fallback T, remedy string, parse func(string) (T, error)) T {
	text := strings.TrimSpace(e.vars[variable])
	if text == "" {
		e.addSetting(name, fallback, sourceDefault)
		return fallback
	}
	value, err := parse(text)
	if err != nil {
		e.rejectValue(variable, text, remedy, fallback, err)
		e.addSetting(name, fallback, sourceDefault)
		return fallback
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
		return parsePortNumber(s, 1)
	})
}

// parsePortNumber parses a port from minimum to 65535. Envoy refuses other numbers, so they are errors with errRefused.
func parsePortNumber(text string, minimum int) (uint32, error) {
	n, err := strconv.Atoi(text)
	if err == nil && (n < minimum || n > math.MaxUint16) {
		err = errRefused
	}
	return uint32(n), err
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

// address returns the IP address in variable, or the zero value if the variable is empty or invalid.
func (e *environment) address(name, variable string) netip.Addr {
	const remedy = "write an IP address, such as 10.1.2.3"
	text := e.vars[variable]
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil && isIstioVariable(variable):
		e.warnValue(variable, text, remedy, "the value has no effect")
		return netip.Addr{}
	case err != nil:
		e.addValueError(variable, text, remedy)
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

// headerName matches the header names that gRPC allows.
var headerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z_.-]+$`) })

// headers returns the gRPC headers that the user configures with variables named prefix plus header name. The list of
// settings contains only the names of the headers, because their values may be secret.
func (e *environment) headers(prefix string) map[string]string {
	found := e.withPrefix(prefix)
	for _, name := range sortedKeys(found) {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "grpc-") {
			e.warn("environment %s: gRPC reserves names with the prefix grpc-; the header is not sent", prefix+name)
			delete(found, name)
			continue
		}
		if !headerName().MatchString(name) {
			e.addValueError(prefix+name, maskedValue, "write a gRPC header name after "+prefix)
		}
		binary := strings.HasSuffix(lower, "-bin") // gRPC encodes the value
		if !binary && strings.ContainsFunc(found[name], func(r rune) bool { return r < ' ' || r > '~' }) {
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
