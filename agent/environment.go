package agent

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

// environment reads settings from variables, notes where each value came from, and gathers what is wrong with them, so
// that all of it is told at once.
type environment struct {
	vars     map[string]string
	settings []Setting
	warnings []string
	errs     []error
	lacking  error // what is not wrong, but not there yet
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
		return e.lacking
	}
	return errors.Join(e.errs...)
}

func (e *environment) note(name string, value any, source string) {
	e.settings = append(e.settings, Setting{Name: name, Value: shown(name, fmt.Sprint(value)), Source: source})
}

func (e *environment) warn(format string, args ...any) {
	e.warnings = append(e.warnings, fmt.Sprintf(format, args...))
}

func (e *environment) refuse(variable, value, remedy string) {
	e.errs = append(e.errs, fmt.Errorf("environment %s: %q: %s", variable, shown(variable, value), remedy))
}

// origin is the variable when it is set, and the default otherwise.
func (e *environment) origin(variable string) string {
	if e.vars[variable] == "" {
		return sourceDefault
	}
	return "environment " + variable
}

// text is a variable's value, or the other value with its source when the variable is empty.
func (e *environment) text(name, variable, otherwise, source string) string {
	value := e.vars[variable]
	if value != "" {
		otherwise, source = value, "environment "+variable
	}
	e.note(name, otherwise, source)
	return otherwise
}

// choice is a text that has to be one of a few.
func (e *environment) choice(name, variable, otherwise string, allowed ...string) string {
	value := e.text(name, variable, otherwise, sourceDefault)
	if !slices.Contains(allowed, value) {
		e.refuse(variable, value, "use one of "+strings.Join(allowed, ", "))
		return otherwise
	}
	return value
}

func parsed[T any](e *environment, name, variable string, otherwise T, remedy string, parse func(string) (T, error)) T {
	text := strings.TrimSpace(e.vars[variable])
	if text == "" {
		e.note(name, otherwise, sourceDefault)
		return otherwise
	}
	value, err := parse(text)
	if err != nil {
		e.refuse(variable, text, remedy)
		value = otherwise
	}
	e.note(name, value, "environment "+variable)
	return value
}

func (e *environment) boolean(name, variable string, otherwise bool) bool {
	return parsed(e, name, variable, otherwise, "write true or false", strconv.ParseBool)
}

func (e *environment) duration(name, variable string, otherwise time.Duration) time.Duration {
	return parsed(e, name, variable, otherwise, "write a duration that is not negative, as 5s or 24h",
		func(s string) (time.Duration, error) {
			d, err := time.ParseDuration(s)
			if err == nil && d < 0 {
				err = strconv.ErrRange
			}
			return d, err
		})
}

func (e *environment) port(name, variable string, otherwise uint32) uint32 {
	return parsed(e, name, variable, otherwise, "write a port from 1 to 65535", func(s string) (uint32, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err == nil && n == 0 {
			err = strconv.ErrRange
		}
		return uint32(n), err
	})
}

func (e *environment) ratio(name, variable string, otherwise float64) float64 {
	return parsed(e, name, variable, otherwise, "write a number from 0 to 1", func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err == nil && !(f >= 0 && f <= 1) {
			err = strconv.ErrRange
		}
		return f, err
	})
}

// address is an IP address, or the zero one when the variable is empty.
func (e *environment) address(name, variable string) netip.Addr {
	text := e.vars[variable]
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		e.refuse(variable, text, "write an IP address, as 10.1.2.3")
		return netip.Addr{}
	}
	e.note(name, a, "environment "+variable)
	return a.Unmap()
}

// prefixed are the variables that begin with the prefix, without it.
func (e *environment) prefixed(prefix string) map[string]string {
	found := map[string]string{}
	for name, value := range e.vars {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			found[rest] = value
		}
	}
	return found
}

// headerName is what a gRPC header may be called.
var headerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z_.-]+$`) })

// headers are the variables that begin with the prefix, as headers; their names are noted, their values may be secret.
func (e *environment) headers(prefix string) map[string]string {
	found := e.prefixed(prefix)
	for _, name := range sortedKeys(found) {
		if !headerName().MatchString(name) || strings.HasPrefix(strings.ToLower(name), "grpc-") || strings.HasSuffix(strings.ToLower(name), "-bin") {
			e.refuse(prefix+name, notShown, "what follows "+prefix+" is the name of a header of text, and none of gRPC's own")
		}
		if strings.ContainsFunc(found[name], func(r rune) bool { return r < ' ' || r > '~' }) {
			e.refuse(prefix+name, notShown, "a header's value is of printable ASCII letters")
		}
		e.note("header "+name, notShown, "environment "+prefix+name)
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
