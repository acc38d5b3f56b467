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

// validator checks one field of a document. path is the field's path, by which problems find its position.
type validator struct {
	d    *document
	path string
}

func (s validator) field(name string) validator { return validator{s.d, s.path + "." + name} }
func (s validator) index(i int) validator {
	return validator{s.d, s.path + "[" + strconv.Itoa(i) + "]"}
}
func (s validator) key(key string) validator       { return validator{s.d, s.path + "[" + key + "]"} }
func (s validator) item(f string, i int) validator { return s.field(f).index(i) }

// refuse records an error of this field.
func (s validator) refuse(value any, message, remedy string) {
	s.d.refuseAt(s.d.fieldPosition(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// warn records that the field does not have the effect that the author expects.
func (s validator) warn(value any, message, remedy string) {
	s.d.report(Warning, s.d.fieldPosition(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// warnNoEffect records that the field has no effect in this mesh.
func (s validator) warnNoEffect(value any, message, remedy string) {
	s.d.reportAs(NoEffect, Warning, s.d.fieldPosition(s.path), s.path, fmt.Sprint(value), message, remedy)
}

// checkRange checks that low <= value <= high.
func (s validator) checkRange(value, low, high int64, remedy string) {
	if value < low || value > high {
		s.refuse(value, fmt.Sprintf("not between %d and %d", low, high), cmp.Or(remedy, "set a number in this range"))
	}
}

func (s validator) checkNotNegative(value int32) {
	if value < 0 {
		s.refuse(value, "must not be negative", "set 0 or more")
	}
}

func (s validator) checkPort(number uint32) {
	if number < 1 || number > 65535 {
		s.refuse(number, "not a port number", "set one between 1 and 65535")
	}
}

// maxDuration is the maximum duration. Envoy's clocks overflow after 292 years.
const maxDuration = 100 * 365 * 24 * time.Hour

// checkMilliseconds checks that d is at least one millisecond, because Envoy or Istio rounds it to whole milliseconds.
func (s validator) checkMilliseconds(d *durationpb.Duration) {
	s.checkAtLeast(d, time.Millisecond, "must be at least 1ms")
}

func (s validator) checkZeroOrMore(d *durationpb.Duration) {
	s.checkAtLeast(d, 0, "must not be negative")
}

func (s validator) checkAtLeast(d *durationpb.Duration, low time.Duration, message string) {
	switch {
	case d == nil:
	case d.AsDuration() < low:
		s.refuse(d.AsDuration(), message, "set a longer time, as in 500ms or 10s")
	case d.AsDuration() > maxDuration:
		s.refuse(d.AsDuration(), "the duration exceeds Envoy's maximum", "set a shorter time, as in 10s or 1h")
	}
}

func (s validator) checkPercent(value float64) {
	if value < 0 || value > 100 {
		s.refuse(strconv.FormatFloat(value, 'g', -1, 64), "not a percentage", "set a number between 0 and 100")
	}
}

func (s validator) checkRegex(expr string) {
	if len(expr) > 1024 {
		s.refuse(expr, fmt.Sprintf("the expression has %d characters; at most 1024 are allowed", len(expr)), "match by prefix, or split the rule")
		return
	}
	switch err := checkRegex(expr); {
	case errors.Is(err, errRegexSize):
		s.refuse(expr, "Envoy cannot use this regular expression: "+err.Error(), "use fewer repetitions, or simpler character classes")
	case err != nil:
		s.refuse(expr, "not a regular expression: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "), "use RE2 syntax, without look-around and back-references")
	}
}

// checkLabels checks that keys and values are valid Kubernetes labels.
func (s validator) checkLabels(labels map[string]string) { s.d.checkLabels(labels, s.path) }

// checkExportTo checks exportTo: a list of namespaces, "." for the document's namespace, or "*" or "~" alone.
func (s validator) checkExportTo(list []string) {
	for i, namespace := range list {
		if namespace != "*" && namespace != "." && namespace != "~" && !dnsLabel.MatchString(namespace) {
			s.index(i).refuse(namespace, "not a namespace", "use the name of a namespace, \".\" for the document's namespace, or \"*\" for all")
		}
		if (namespace == "*" || namespace == "~") && len(list) > 1 {
			s.index(i).refuse(namespace, "this item makes the other items meaningless", "remove the other items, or list only namespaces")
		}
	}
}

var hostLabel = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?$`)

// isHost reports whether name is a valid host name without a wildcard. A dot at the end is permitted.
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

// isWildcardHost reports whether name is "*", a host name, or a host name after a wildcard: *.example.com,
// *-api.example.com or *api.example.com. Envoy supports these wildcards in the domains of virtual hosts.
func isWildcardHost(name string) bool {
	if name == "*" {
		return true
	}
	rest, wild := strings.CutPrefix(name, "*")
	if wild {
		rest = strings.TrimPrefix(rest, ".")
		rest = strings.TrimPrefix(rest, "-")
	}
	return isHost(rest)
}

// isPartialWildcard reports whether the wildcard of host is only a part of a label, as in *api.example.com.
func isPartialWildcard(host string) bool {
	rest, wild := strings.CutPrefix(host, "*")
	return wild && rest != "" && !strings.HasPrefix(rest, ".")
}

// checkServerName checks that Envoy can compare host with the server name (SNI) of a TLS connection. Envoy cannot do
// this if a wildcard is a part of a label.
func (s validator) checkServerName(host string) {
	if isPartialWildcard(host) {
		s.refuse(host, "Envoy cannot compare a part of a label with the server name of a TLS connection", "use a wildcard for a whole label, as in *.example.com")
	}
}

// checkHost refuses name if it is neither a host name without a wildcard nor an IP address.
func (s validator) checkHost(name string) {
	switch {
	case name == "":
		s.refuse("", "the host is missing", "set a host name")
	case strings.Contains(name, "://"):
		s.refuse(name, "a URL, not a host", "remove the scheme and the path")
	case strings.Contains(name, "*"):
		s.refuse(name, "a wildcard is not possible in this field", "set the name of one host")
	case !isHost(name) && !isIP(name):
		s.refuse(name, "not the name of a host", hostRemedy(name))
	}
}

func hostRemedy(name string) string {
	if host, port, ok := strings.Cut(name, ":"); ok && isDigits(port) {
		return fmt.Sprintf("remove the port: write %q, and set the port in the field for it", host)
	}
	return "use letters, digits, '-' and '.'"
}

// checkWildcardHost refuses name if it is neither a host name, which may begin with a wildcard, nor an IP address.
func (s validator) checkWildcardHost(name string) {
	switch {
	case name == "":
		s.refuse("", "the host is missing", "set a host name")
	case strings.Contains(name, "://"):
		s.refuse(name, "a URL, not a host", "remove the scheme and the path")
	case !isWildcardHost(name) && !isIP(name):
		remedy := hostRemedy(name)
		if strings.Contains(name, "*") {
			remedy = "a wildcard is possible only at the start, as in *.example.com"
		}
		s.refuse(name, "not the name of a host", remedy)
	}
}

func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// isCIDR reports whether text is an IP address or a CIDR range.
func isCIDR(text string) bool {
	_, err := netip.ParsePrefix(text)
	return err == nil || isIP(text)
}

func (s validator) checkCIDRs(list []string) {
	for i, text := range list {
		if !isCIDR(text) {
			s.index(i).refuse(text, "not an address or a range of addresses", "use a value such as 10.0.0.1 or 10.0.0.0/8")
		}
	}
}
