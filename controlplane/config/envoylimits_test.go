package config

import (
	"regexp"
	"strings"
	"testing"
)

// Envoy would reject the whole response or crash.
func TestValuesThatEnvoyRejectsAreRefused(t *testing.T) {
	rule := func(fields string) string { return "hosts: [a]\nhttp: [{" + fields + "}]" }
	to := "route: [{destination: {host: a}}]"
	long := strings.Repeat("x", 20_000)
	policy := func(rule string) string { return "action: DENY\nrules: [{" + rule + "}]" }
	path := func(p string) string { return policy(`to: [{operation: {paths: ["` + p + `"]}}]`) }
	for name, c := range map[string]struct {
		kind, spec string
		want       expectedProblem
	}{
		"redirect.uri":          {"VirtualService", rule(`redirect: {uri: "/a\r\nb"}`), expectedProblem{Error, "spec.http[0].redirect.uri", "/a\r\nb", "no line breaks"}},
		"redirect.authority":    {"VirtualService", rule(`redirect: {authority: "a\r\nb"}`), expectedProblem{Error, "spec.http[0].redirect.authority", "a\r\nb", "no line breaks"}},
		"redirect by prefix":    {"VirtualService", rule(`redirect: {prefixRewrite: "/a\nb"}`), expectedProblem{Error, "spec.http[0].redirect.prefixRewrite", "/a\nb", "no line breaks"}},
		"rewrite.uri":           {"VirtualService", rule(`rewrite: {uri: "/a\r\nb"}, ` + to), expectedProblem{Error, "spec.http[0].rewrite.uri", "/a\r\nb", "no line breaks"}},
		"rewrite.authority":     {"VirtualService", rule(`rewrite: {authority: "a\r\nb"}, ` + to), expectedProblem{Error, "spec.http[0].rewrite.authority", "a\r\nb", "no line breaks"}},
		"rewrite by expression": {"VirtualService", rule(`rewrite: {uriRegexRewrite: {match: a, rewrite: "a\nb"}}, ` + to), expectedProblem{Error, "spec.http[0].rewrite.uriRegexRewrite.rewrite", "a\nb", "no line breaks"}},
		"long header":           {"VirtualService", rule(`headers: {request: {set: {a: ` + long + `}}}, ` + to), expectedProblem{Error, "spec.http[0].headers.request.set[a]", shorten(long), "at most 16384"}},
		"percent signs":         {"VirtualService", rule(`headers: {request: {set: {a: "` + strings.Repeat("%", 9_000) + `"}}}, ` + to), expectedProblem{Error, "spec.http[0].headers.request.set[a]", shorten(strings.Repeat("%", 9_000)), "each percent sign counts as two"}},
		"long header's name":    {"VirtualService", rule(`headers: {request: {set: {` + strings.Repeat("x", 1000) + `: a}, remove: [` + long + `]}}, ` + to), expectedProblem{Error, "spec.http[0].headers.request.remove[0]", shorten(long), "at most 16384"}},
		"cors with a break":     {"VirtualService", rule(`corsPolicy: {allowHeaders: ["a\nb"]}, ` + to), expectedProblem{Error, "spec.http[0].corsPolicy.allowHeaders", "a\nb", "no line breaks"}},
		"large expression":      {"VirtualService", rule(`match: [{uri: {regex: '[acegikmoqsuwyACEGIKMOQSUWY02468!#%&=@]{1000}'}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].uri.regex", `[acegikmoqsuwyACEGIKMOQSUWY02468!#%&=@]{1000}`, "exceeds Envoy's size limit"}},
		"letter beyond a byte":  {"VirtualService", rule(`match: [{uri: {regex: '/\\\x{100}'}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].uri.regex", `/\\\x{100}`, `\x{100} is above \xff`}},
		"classes of Unicode":    {"VirtualService", rule(`match: [{uri: {regex: '\pL{1000}'}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].uri.regex", `\pL{1000}`, "exceeds Envoy's size limit"}},
		"octal beyond a byte":   {"VirtualService", rule(`match: [{uri: {regex: '/\400'}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].uri.regex", `/\400`, `\400 is above \xff`}},
		"range of bytes":        {"VirtualService", rule(`match: [{uri: {regex: '[\xff-Ā]'}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].uri.regex", `[\xff-Ā]`, "invalid character class range"}},
		"nameless parameter":    {"VirtualService", rule(`match: [{queryParams: {"": {exact: a}}}], ` + to), expectedProblem{Error, "spec.http[0].match[0].queryParams[]", "", "needs 1 to 1024"}},
		"large answer":          {"VirtualService", rule(`directResponse: {status: 200, body: {string: ` + strings.Repeat("x", MaxDirectResponse+1) + `}}`), expectedProblem{Error, "spec.http[0].directResponse.body", "1048577", "larger than 1 MiB"}},
		"hash by no header":     {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: \"a\\nb\"}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.consistentHash.httpHeaderName", "a\nb", "not the name of a header"}},
		"hash by no parameter":  {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {httpQueryParameterName: ''}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.consistentHash.httpQueryParameterName", "", "set the name of the parameter"}},
		"condition on a header": {"AuthorizationPolicy", policy(`when: [{key: "request.headers[a\nb]", values: [x]}]`), expectedProblem{Error, "spec.rules[0].when[0].key", "a\nb", "not the name of a header"}},
		"long host":             {"AuthorizationPolicy", policy(`to: [{operation: {hosts: [` + long + long + `]}}]`), expectedProblem{Error, "spec.rules[0].to[0].operation.hosts[0]", shorten(long + long), "at most 255"}},
		"long namespace":        {"AuthorizationPolicy", policy(`from: [{source: {notNamespaces: [` + long + `]}}]`), expectedProblem{Error, "spec.rules[0].from[0].source.notNamespaces[0]", shorten(long), "at most 2048"}},
		"long condition":        {"AuthorizationPolicy", policy(`when: [{key: source.namespace, notValues: [` + long + `]}]`), expectedProblem{Error, "spec.rules[0].when[0].notValues[0]", shorten(long), "at most 2048"}},
		"template without root": {"AuthorizationPolicy", path("{**}/x"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "{**}/x", "does not begin with a slash"}},
		"template of a star":    {"AuthorizationPolicy", path("{*}"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "{*}", "does not begin with a slash"}},
		"template of two ends":  {"AuthorizationPolicy", path("/a/{**}/b/{**}"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/a/{**}/b/{**}", "{**} follows {**}"}},
		"template after end":    {"AuthorizationPolicy", path("/{**}/{*}/x"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/{**}/{*}/x", "{*} follows {**}"}},
		"template with space":   {"AuthorizationPolicy", path("/{*}/a b"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/{*}/a b", `the part "a b"`}},
		"template with pipe":    {"AuthorizationPolicy", path("/{*}/a|b"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/{*}/a|b", `the part "a|b"`}},
		"template with accent":  {"AuthorizationPolicy", path("/é/{*}"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/é/{*}", `the part "é"`}},
		"template with a hole":  {"AuthorizationPolicy", path("/a//{*}"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/a//{*}", "an empty part"}},
		"template, two in one":  {"AuthorizationPolicy", path("/a{*}/x"), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/a{*}/x", `the part "a{*}"`}},
		"long template":         {"AuthorizationPolicy", path("/{*}/" + strings.Repeat("a", 254)), expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", shorten("/{*}/" + strings.Repeat("a", 254)), "at most 256"}},
	} {
		t.Run(name, func(t *testing.T) { checkProblem(t, wrap(c.kind, c.spec), c.want) })
	}
}

func TestPathTemplatesAreConverted(t *testing.T) {
	for given, want := range map[string]string{"/{**}": "/**", "/a/{*}": "/a/*", "/{*}/{**}": "/*/**", "/{*}/{*}/b": "/*/*/b", "/a.b/{**}/c:d@e": "/a.b/**/c:d@e"} {
		if got, err := EnvoyPathTemplate(given); err != nil || got != want {
			t.Errorf("%s becomes %q, %v", given, got, err)
		}
	}
}

// FuzzPathTemplate checks that every accepted template matches Envoy's grammar.
func FuzzPathTemplate(f *testing.F) {
	for _, p := range []string{"/{**}", "/a/{*}/b", "{**}/x", "/a//{*}", "/é/{*}", "/{*}/{**}/{*}"} {
		f.Add(p)
	}
	grammar := regexp.MustCompile(`^(/(\*|[a-zA-Z0-9\-._~%!$&'()+,;:@=]+))*(/\*\*(/[a-zA-Z0-9\-._~%!$&'()+,;:@=]+)*)?$`)
	f.Fuzz(func(t *testing.T, p string) {
		if template, err := EnvoyPathTemplate(p); err == nil && (!grammar.MatchString(template) || len(template) > 256 || template == "") {
			t.Errorf("%q becomes %q", p, template)
		}
	})
}
