package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// scope is a place in a document that is being validated: what is said of it gets its path and position.
type scope struct {
	d    *document
	path string
}

func (s scope) field(name string) scope    { return scope{s.d, s.path + "." + name} }
func (s scope) index(i int) scope          { return scope{s.d, s.path + "[" + strconv.Itoa(i) + "]"} }
func (s scope) key(key string) scope       { return scope{s.d, s.path + "[" + key + "]"} }
func (s scope) item(f string, i int) scope { return s.field(f).index(i) }

// refuse records an error at this place.
func (s scope) refuse(value any, message, remedy string) {
	s.d.refuseAt(s.d.place(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// warn records something that will not do what its author expects.
func (s scope) warn(value any, message, remedy string) {
	s.d.report(Warning, s.d.place(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// noEffect records something that is not done here.
func (s scope) noEffect(value any, message, remedy string) {
	s.d.reportAs(NoEffect, Warning, s.d.place(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// between checks a number.
func (s scope) between(value, low, high int64, remedy string) {
	if value < low || value > high {
		s.refuse(value, fmt.Sprintf("not between %d and %d", low, high), cmp.Or(remedy, "give a number in this range"))
	}
}

func (s scope) notNegative(value int32) {
	if value < 0 {
		s.refuse(value, "must not be negative", "give 0 or more")
	}
}

func (s scope) port(number uint32) {
	if number < 1 || number > 65535 {
		s.refuse(number, "not a port number", "give one between 1 and 65535")
	}
}

// longest is the longest time that is taken; a proxy's clocks count to 292 years.
const longest = 100 * 365 * 24 * time.Hour

// millisecond checks a duration that Envoy or Istio takes in whole milliseconds.
func (s scope) millisecond(d *durationpb.Duration) {
	s.atLeast(d, time.Millisecond, "must be at least 1ms")
}

func (s scope) zeroOrMore(d *durationpb.Duration) { s.atLeast(d, 0, "must not be negative") }

func (s scope) atLeast(d *durationpb.Duration, low time.Duration, message string) {
	switch {
	case d == nil:
	case d.AsDuration() < low:
		s.refuse(d.AsDuration(), message, "give a longer time, as in 500ms or 10s")
	case d.AsDuration() > longest:
		s.refuse(d.AsDuration(), "longer than proxies can wait", "give a shorter time, as in 10s or 1h")
	}
}

func (s scope) percent(value float64) {
	if value < 0 || value > 100 {
		s.refuse(strconv.FormatFloat(value, 'g', -1, 64), "not a percentage", "give a number between 0 and 100")
	}
}

func (s scope) regex(expr string) {
	if len(expr) > 1024 {
		s.refuse(expr, fmt.Sprintf("the expression has %d characters; at most 1024 are taken", len(expr)), "match by prefix, or split the rule")
		return
	}
	switch err := checkRegex(expr); {
	case errors.Is(err, errRegexSize):
		s.refuse(expr, "not a regular expression that can be used: "+err.Error(), "repeat less, or use simpler classes")
	case err != nil:
		s.refuse(expr, "not a regular expression: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "), "use RE2 syntax, without look-around and back-references")
	}
}

// labels checks a selector.
func (s scope) labels(labels map[string]string) { s.d.checkLabels(labels, s.path) }

// exportTo checks a list of namespaces.
func (s scope) exportTo(list []string) {
	for i, namespace := range list {
		if namespace != "*" && namespace != "." && namespace != "~" && !dnsLabel.MatchString(namespace) {
			s.index(i).refuse(namespace, "not a namespace", "use a namespace's name, \".\" for this one, or \"*\" for all")
		}
		if (namespace == "*" || namespace == "~") && len(list) > 1 {
			s.index(i).refuse(namespace, "excludes the other items", "keep it alone, or list namespaces")
		}
	}
}

var hostLabel = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?$`)

// isHost says whether a name could be a host's.
func isHost(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !hostLabel.MatchString(label) {
			return false
		}
	}
	return true
}

// isWildcardHost says whether it is a host, or one with a leading "*." or "*-" as Envoy takes them.
func isWildcardHost(name string) bool {
	if name == "*" {
		return true
	}
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		return isHost(rest)
	}
	if rest, ok := strings.CutPrefix(name, "*-"); ok {
		return isHost(rest)
	}
	return isHost(name)
}

// host checks the name of one host. An address passes for one: it is told apart where it matters.
func (s scope) host(name string) {
	switch {
	case name == "":
		s.refuse("", "no host", "name one")
	case strings.Contains(name, "://"):
		s.refuse(name, "a URL, not a host", "leave out the scheme and the path")
	case strings.Contains(name, "*"):
		s.refuse(name, "a wildcard where one host is needed", "name the host")
	case !isHost(name) && !isIP(name):
		s.refuse(name, "not the name of a host", hostRemedy(name))
	}
}

func hostRemedy(name string) string {
	if host, port, ok := strings.Cut(name, ":"); ok && isDigits(port) {
		return fmt.Sprintf("the port does not belong here: write %q, and the port in its own field", host)
	}
	return "use letters, digits, '-' and '.'"
}

// wildcardHost checks a host that may have a wildcard as its first part.
func (s scope) wildcardHost(name string) {
	switch {
	case name == "":
		s.refuse("", "no host", "name one")
	case strings.Contains(name, "://"):
		s.refuse(name, "a URL, not a host", "leave out the scheme and the path")
	case !isWildcardHost(name) && !isIP(name):
		remedy := hostRemedy(name)
		if strings.Contains(name, "*") {
			remedy = "a wildcard stands first and alone, as in *.example.com"
		}
		s.refuse(name, "not the name of a host", remedy)
	}
}

func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// isCIDR says whether it is an address or a range of addresses.
func isCIDR(text string) bool {
	_, err := netip.ParsePrefix(text)
	return err == nil || isIP(text)
}

func (s scope) cidrs(list []string) {
	for i, text := range list {
		if !isCIDR(text) {
			s.index(i).refuse(text, "not an address or a range of addresses", "as in 10.0.0.1 or 10.0.0.0/8")
		}
	}
}
