package config

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"
)

// wrap returns a document with a spec.
func wrap(kind, spec string) string {
	apiVersion := "networking.istio.io/v1"
	switch kind {
	case "Service":
		apiVersion = "v1"
	case "PeerAuthentication", "AuthorizationPolicy", "RequestAuthentication":
		apiVersion = "security.istio.io/v1"
	case "Telemetry":
		apiVersion = "telemetry.istio.io/v1"
	case "WasmPlugin":
		apiVersion = "extensions.istio.io/v1alpha1"
	case "ProxyConfig":
		apiVersion = "networking.istio.io/v1beta1"
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\nspec:\n  %s\n", apiVersion, kind, strings.ReplaceAll(spec, "\n", "\n  "))
}

// expectedProblem is a problem that a test expects: severity, field, value, and a part of its message and remedy.
type expectedProblem struct {
	severity              Severity
	field, value, message string
}

func checkProblem(t *testing.T, text string, want expectedProblem) {
	t.Helper()
	resources, problems := Parse("f.yaml", []byte(text))
	if (want.severity == Error) != (len(resources) == 0) {
		t.Errorf("with an expected %s the resources are %v", want.severity, resources)
	}
	for _, p := range problems {
		text := p.Message + " (" + p.Remedy + ")"
		if p.Severity == want.severity && p.Field == want.field && p.Value == want.value && strings.Contains(text, want.message) {
			if p.At.File != "f.yaml" || p.At.Line == 0 || p.At.Column == 0 || p.Key.Name != "x" {
				t.Errorf("without its place or name: %s", p)
			}
			if p.Remedy == "" {
				t.Errorf("without a remedy: %s", p)
			}
			return
		}
	}
	t.Errorf("want %+v, got", want)
	for _, p := range problems {
		t.Errorf("   %s: %s", p.Field, p)
	}
}

func TestProblemsInSpecsAreReported(t *testing.T) {
	route := "\nhttp: [{route: [{destination: {host: a}}]}]"
	for name, c := range map[string]struct {
		kind, spec string
		want       expectedProblem
	}{
		"unknown field":                   {"VirtualService", "hosts: [a]\nhttp:\n- timout: 5s\n  route: [{destination: {host: a}}]", expectedProblem{Error, "spec.http[0].timout", "", "did you mean timeout"}},
		"unknown field far off":           {"WorkloadEntry", "address: 1.1.1.1\nxyzzy: 1", expectedProblem{Error, "spec.xyzzy", "", "one of: address, labels"}},
		"field of an outer level":         {"VirtualService", "hosts: [a]\nhttp:\n- route:\n  - destination: {host: a}\n    timeout: 5s", expectedProblem{Error, "spec.http[0].route[0].timeout", "", "unknown field"}},
		"field of an inner level":         {"DestinationRule", "host: a\nloadBalancer: {simple: RANDOM}", expectedProblem{Error, "spec.loadBalancer", "", "unknown field"}},
		"snake case of another":           {"DestinationRule", "host: a\ntrafic_policy: {}", expectedProblem{Error, "spec.trafic_policy", "", "did you mean trafficPolicy"}},
		"both names of a field":           {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: SIMPLE}}\ntraffic_policy: {}", expectedProblem{Error, "spec.traffic_policy", "", "set it once, as trafficPolicy"}},
		"two of one choice":               {"VirtualService", "hosts: [a]\nhttp:\n- match: [{uri: {exact: /a, prefix: /b}}]\n  route: [{destination: {host: a}}]", expectedProblem{Error, "spec.http[0].match[0].uri.prefix", "", "exact and prefix exclude each other"}},
		"enum":                            {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: SIMPEL}}", expectedProblem{Error, "spec.trafficPolicy.tls.mode", "SIMPEL", "did you mean SIMPLE? Allowed are DISABLE, ISTIO_MUTUAL, MUTUAL, SIMPLE"}},
		"enum far off":                    {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: 3}}", expectedProblem{Error, "spec.trafficPolicy.tls.mode", "3", "one of: DISABLE"}},
		"duration without unit":           {"VirtualService", "hosts: [a]\nhttp: [{timeout: 5, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].timeout", "5", "write 5s"}},
		"no duration":                     {"VirtualService", "hosts: [a]\nhttp: [{timeout: soon, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].timeout", "soon", "500ms"}},
		"negative duration":               {"VirtualService", "hosts: [a]\nhttp: [{timeout: -1s, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].timeout", "-1s", "negative"}},
		"number for text":                 {"DestinationRule", "host: a\nsubsets: [{name: v1, labels: {version: 1.10}}]", expectedProblem{Error, "spec.subsets[0].labels[version]", "1.10", `put it in quotes: "1.10"`}},
		"truth for text":                  {"WorkloadEntry", "address: 1.1.1.1\nlabels: {canary: true}", expectedProblem{Error, "spec.labels[canary]", "true", "in quotes"}},
		"text for number":                 {"VirtualService", `hosts: [a]` + "\n" + `http: [{route: [{destination: {host: a}, weight: "90"}]}]`, expectedProblem{Error, "spec.http[0].route[0].weight", "90", "without quotes"}},
		"fraction for number":             {"VirtualService", "hosts: [a]\nhttp: [{route: [{destination: {host: a}, weight: 1.5}]}]", expectedProblem{Error, "spec.http[0].route[0].weight", "1.5", "a fraction"}},
		"text for truth":                  {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*'], tls: {httpsRedirect: 'true'}}]", expectedProblem{Error, "spec.servers[0].tls.httpsRedirect", "true", "without quotes"}},
		"list for fields":                 {"DestinationRule", "host: a\ntrafficPolicy: [tls]", expectedProblem{Error, "spec.trafficPolicy", "", "expected fields, found a list"}},
		"fields for list":                 {"VirtualService", "hosts: {a: b}" + route, expectedProblem{Error, "spec.hosts", "", "expected a list, found fields"}},
		"text for list":                   {"VirtualService", "hosts: a" + route, expectedProblem{Error, "spec.hosts", "a", `begin each item with "- "`}},
		"empty item":                      {"VirtualService", "hosts:\n- \n- a" + route, expectedProblem{Error, "spec.hosts[0]", "", "an empty item"}},
		"too large a number":              {"WorkloadEntry", "address: 1.1.1.1\nweight: 5000000000", expectedProblem{Error, "spec.weight", "5000000000", "not between"}},
		"percent sign":                    {"VirtualService", "hosts: [a]\nhttp: [{fault: {abort: {httpStatus: 500, percentage: {value: 5%}}}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].fault.abort.percentage.value", "5%", "without %"}},
		"port as key":                     {"PeerAuthentication", "selector: {matchLabels: {a: b}}\nportLevelMtls: {http: {mode: STRICT}}", expectedProblem{Error, "spec.portLevelMtls[http]", "http", "not a port number"}},
		"spec of the wrong form":          {"DestinationRule", "- host", expectedProblem{Error, "spec", "", "expected fields"}},
		"no hosts":                        {"VirtualService", "tcp: [{route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.hosts", "", "needs hosts"}},
		"no routes":                       {"VirtualService", "hosts: [a]", expectedProblem{Error, "spec", "", "needs routes"}},
		"all hosts in the mesh":           {"VirtualService", "hosts: ['*']" + route, expectedProblem{Error, "spec.hosts[0]", "*", "host \"*\" is possible only for gateways"}},
		"a URL for host":                  {"VirtualService", "hosts: ['http://a']" + route, expectedProblem{Error, "spec.hosts[0]", "http://a", "a URL, not a host"}},
		"host with port":                  {"VirtualService", "hosts: ['a:80']" + route, expectedProblem{Error, "spec.hosts[0]", "a:80", `write "a"`}},
		"wildcard in the middle":          {"VirtualService", "hosts: ['a.*.com']" + route, expectedProblem{Error, "spec.hosts[0]", "a.*.com", "*.example.com"}},
		"gateway's name":                  {"VirtualService", "hosts: [a]\ngateways: [a/b/c]" + route, expectedProblem{Error, "spec.gateways[0]", "a/b/c", "namespace/name"}},
		"route to nothing":                {"VirtualService", "hosts: [a]\nhttp: [{name: n}]", expectedProblem{Error, "spec.http[0]", "", "the route has no action"}},
		"two actions":                     {"VirtualService", "hosts: [a]\nhttp: [{redirect: {uri: /a}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0]", "", "redirect, route"}},
		"redirect and rewrite":            {"VirtualService", "hosts: [a]\nhttp: [{redirect: {uri: /a}, rewrite: {uri: /b}}]", expectedProblem{Error, "spec.http[0].rewrite", "", "a rewrite has an effect only with a route"}},
		"no destination":                  {"VirtualService", "hosts: [a]\nhttp: [{route: [{weight: 1}]}]", expectedProblem{Error, "spec.http[0].route[0].destination", "", "the destination is missing"}},
		"no host of destination":          {"VirtualService", "hosts: [a]\nhttp: [{route: [{destination: {subset: v1}}]}]", expectedProblem{Error, "spec.http[0].route[0].destination.host", "", "the host is missing"}},
		"destination's port":              {"VirtualService", "hosts: [a]\nhttp: [{route: [{destination: {host: a, port: {number: 70000}}}]}]", expectedProblem{Error, "spec.http[0].route[0].destination.port.number", "70000", "port number"}},
		"negative weight":                 {"VirtualService", "hosts: [a]\nhttp: [{route: [{destination: {host: a}, weight: -1}, {destination: {host: b}, weight: 101}]}]", expectedProblem{Error, "spec.http[0].route[0].weight", "-1", "negative"}},
		"no weights":                      {"VirtualService", "hosts: [a]\nhttp: [{route: [{destination: {host: a}}, {destination: {host: b}}]}]", expectedProblem{Error, "spec.http[0].route", "", "no destination has a weight"}},
		"expression":                      {"VirtualService", "hosts: [a]\nhttp: [{match: [{uri: {regex: 'a(?=b)'}}], route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].match[0].uri.regex", "a(?=b)", "RE2"}},
		"empty prefix":                    {"VirtualService", "hosts: [a]\nhttp: [{match: [{uri: {prefix: ''}}], route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].match[0].uri.prefix", "", "the prefix is empty"}},
		"header's name":                   {"VirtualService", "hosts: [a]\nhttp: [{match: [{headers: {'x y': {exact: b}}}], route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].match[0].headers[x y]", "x y", "name of a header"}},
		"attempts":                        {"VirtualService", "hosts: [a]\nhttp: [{retries: {attempts: -2}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].retries.attempts", "-2", "negative"}},
		"retry condition":                 {"VirtualService", "hosts: [a]\nhttp: [{retries: {attempts: 2, retryOn: 'conect-failure'}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].retries.retryOn", "conect-failure", "did you mean connect-failure"}},
		"percentage":                      {"VirtualService", "hosts: [a]\nhttp: [{fault: {abort: {httpStatus: 500, percentage: {value: 120}}}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].fault.abort.percentage.value", "120", "between 0 and 100"}},
		"fault of nothing":                {"VirtualService", "hosts: [a]\nhttp: [{fault: {}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].fault", "", "delay or an abort"}},
		"abort's status":                  {"VirtualService", "hosts: [a]\nhttp: [{fault: {abort: {httpStatus: 20}}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].fault.abort.httpStatus", "20", "not between 200 and 599"}},
		"header is the request's":         {"VirtualService", "hosts: [a]\nhttp: [{headers: {request: {set: {':path': /a}}}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].headers.request.set[:path]", ":path", "use rewrite"}},
		"mirror and mirrors":              {"VirtualService", "hosts: [a]\nhttp: [{mirror: {host: b}, mirrors: [{destination: {host: c}}], route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].mirrors", "", "mirror and mirrors exclude each other"}},
		"redirect's code":                 {"VirtualService", "hosts: [a]\nhttp: [{redirect: {uri: /b, redirectCode: 200}}]", expectedProblem{Error, "spec.http[0].redirect.redirectCode", "200", "301, 302"}},
		"empty rewrite":                   {"VirtualService", "hosts: [a]\nhttp: [{rewrite: {}, route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.http[0].rewrite", "", "set uri"}},
		"exported":                        {"VirtualService", "hosts: [a]\nexportTo: ['*', b]" + route, expectedProblem{Error, "spec.exportTo[0]", "*", "this item makes the other items meaningless"}},
		"TCP route to nothing":            {"VirtualService", "hosts: [a]\ntcp: [{match: [{port: 1}]}]", expectedProblem{Error, "spec.tcp[0].route", "", "the route has no destination"}},
		"TLS route without names":         {"VirtualService", "hosts: [a]\ntls: [{match: [{port: 443}], route: [{destination: {host: a}}]}]", expectedProblem{Error, "spec.tls[0].match[0].sniHosts", "", "server names"}},
		"rule without host":               {"DestinationRule", "subsets: [{name: v1}]", expectedProblem{Error, "spec.host", "", "the host is missing"}},
		"subset without name":             {"DestinationRule", "host: a\nsubsets: [{labels: {a: b}}]", expectedProblem{Error, "spec.subsets[0]", "", "needs a name"}},
		"two subsets of a name":           {"DestinationRule", "host: a\nsubsets: [{name: v1}, {name: v1}]", expectedProblem{Error, "spec.subsets[1].name", "v1", "subsets 0 and 1"}},
		"label's value":                   {"DestinationRule", "host: a\nsubsets: [{name: v1, labels: {a: 'b c'}}]", expectedProblem{Error, "spec.subsets[0].labels[a]", "b c", "label's value"}},
		"ejected share":                   {"DestinationRule", "host: a\ntrafficPolicy: {outlierDetection: {maxEjectionPercent: 101}}", expectedProblem{Error, "spec.trafficPolicy.outlierDetection.maxEjectionPercent", "101", "percentage"}},
		"connect timeout":                 {"DestinationRule", "host: a\ntrafficPolicy: {connectionPool: {tcp: {connectTimeout: 0s}}}", expectedProblem{Error, "spec.trafficPolicy.connectionPool.tcp.connectTimeout", "0s", "at least 1ms"}},
		"mutual without files":            {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /c}}", expectedProblem{Error, "spec.trafficPolicy.tls.privateKey", "", "needs a private key"}},
		"mesh mutual with files":          {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: ISTIO_MUTUAL, clientCertificate: /c}}", expectedProblem{Error, "spec.trafficPolicy.tls.clientCertificate", "/c", "use mode MUTUAL"}},
		"settings of no port":             {"DestinationRule", "host: a\ntrafficPolicy: {portLevelSettings: [{tls: {mode: DISABLE}}]}", expectedProblem{Error, "spec.trafficPolicy.portLevelSettings[0].port", "", "the port is missing"}},
		"settings of a port twice":        {"DestinationRule", "host: a\ntrafficPolicy: {portLevelSettings: [{port: {number: 1}}, {port: {number: 1}}]}", expectedProblem{Error, "spec.trafficPolicy.portLevelSettings[1].port", "1", "portLevelSettings 0 and 1 are for the same port"}},
		"hash by nothing":                 {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.consistentHash", "", "the hash key is missing"}},
		"gateway without servers":         {"Gateway", "selector: {a: b}", expectedProblem{Error, "spec.servers", "", "needs servers"}},
		"messages of gRPC":                {"Telemetry", "metrics: [{overrides: [{match: {metric: GRPC_REQUEST_MESSAGES}, disabled: true}]}]", expectedProblem{Warning, "spec.metrics[0].overrides[0].match.metric", "GRPC_REQUEST_MESSAGES", "has no effect, because proxies do not count gRPC messages"}},
		"listener by its port's name":     {"EnvoyFilter", "configPatches: [{applyTo: LISTENER, match: {listener: {portName: http}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1}}}]", expectedProblem{Warning, "spec.configPatches[0].match.listener.portName", "http", "use portNumber"}},
		"exponential delay":               {"VirtualService", "hosts: [a]\nhttp: [{fault: {delay: {exponentialDelay: 1s}}, route: [{destination: {host: a}}]}]", expectedProblem{Warning, "spec.http[0].fault.delay.exponentialDelay", "", "use fixedDelay"}},
		"certificates not verified":       {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: c, insecureSkipVerify: true}}]", expectedProblem{Warning, "spec.servers[0].tls.insecureSkipVerify", "", "OPTIONAL_MUTUAL"}},
		"interval of a retry budget":      {"DestinationRule", "host: a\ntrafficPolicy: {retryBudget: {budgetInterval: -1s}}", expectedProblem{Error, "spec.trafficPolicy.retryBudget.budgetInterval", "-1s", "negative"}},
		"gateway without selector":        {"Gateway", "servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]", expectedProblem{Warning, "spec.selector", "", "a Gateway without a selector applies to all gateways of the mesh"}},
		"server without port":             {"Gateway", "selector: {a: b}\nservers: [{hosts: ['*']}]", expectedProblem{Error, "spec.servers[0].port", "", "needs a port"}},
		"server's protocol":               {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: http, protocol: HTPT}, hosts: ['*']}]", expectedProblem{Error, "spec.servers[0].port.protocol", "HTPT", "did you mean HTTP"}},
		"HTTPS without tls":               {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*']}]", expectedProblem{Error, "spec.servers[0].tls", "", "needs tls"}},
		"HTTPS without certificate":       {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE}}]", expectedProblem{Error, "spec.servers[0].tls.serverCertificate", "", "needs a certificate"}},
		"mutual, certificates in a list":  {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, tlsCertificates: [{serverCertificate: /c, privateKey: /k}]}}]", expectedProblem{Error, "spec.servers[0].tls.caCertificates", "", "mode MUTUAL requires the CA certificates for client certificates"}},
		"mutual, secret and a list":       {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: foo, tlsCertificates: [{serverCertificate: /c, privateKey: /k}]}}]", expectedProblem{Error, "spec.servers[0].tls.credentialName", "foo", "remove one of the two"}},
		"optional mutual without CA":      {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: OPTIONAL_MUTUAL, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[0].tls.caCertificates", "", "mode OPTIONAL_MUTUAL requires the CA certificates for client certificates"}},
		"mutual with everyone":            {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: system}}]", expectedProblem{Error, "spec.servers[0].tls.caCertificates", "system", "the gateway would accept any client with a certificate of a public CA"}},
		"ports of one name and number":    {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /ca}}, {port: {number: 443, name: https, protocol: HTTPS}, hosts: [b.example], tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[1].port.name", "https", "servers 0 and 1 have ports with the same name"}},
		"servers of one name":             {"Gateway", "selector: {a: b}\nservers: [{name: s, port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.example], tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /ca}}, {name: s, port: {number: 443, name: b, protocol: HTTPS}, hosts: [b.example], tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[1].name", "s", "servers 0 and 1 have the same name (rename one"}},
		"mutual without CA":               {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[0].tls.caCertificates", "", "mode MUTUAL requires the CA certificates for client certificates"}},
		"certificate on HTTP":             {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*'], tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[0].tls", "", "protocol to HTTPS"}},
		"server without hosts":            {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: http, protocol: HTTP}}]", expectedProblem{Error, "spec.servers[0].hosts", "", "needs hosts"}},
		"entry without hosts":             {"ServiceEntry", "ports: [{number: 80, name: http}]", expectedProblem{Error, "spec.hosts", "", "needs hosts"}},
		"entry without ports":             {"ServiceEntry", "hosts: [a.com]\nresolution: DNS", expectedProblem{Warning, "spec.ports", "", "without ports has no effect"}},
		"entry for TLS by a partial name": {"ServiceEntry", "hosts: ['*api.example']\nports: [{number: 443, name: tls, protocol: TLS}]", expectedProblem{Error, "spec.hosts[0]", "*api.example", "server name of a TLS connection"}},
		"HTTPS for a partial name":        {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['./*api.example'], tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]", expectedProblem{Error, "spec.servers[0].hosts[0]", "*api.example", "server name of a TLS connection"}},
		"wildcard within a host":          {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['a*.example']}]", expectedProblem{Error, "spec.servers[0].hosts[0]", "a*.example", "a wildcard is possible only at the start"}},
		"redirect on HTTPS":               {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k, httpsRedirect: true}}]", expectedProblem{Warning, "spec.servers[0].tls.httpsRedirect", "true", "has no effect"}},
		"redirect hides no error":         {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, httpsRedirect: true, serverCertificate: /c}}]", expectedProblem{Error, "spec.servers[0].tls.privateKey", "", "needs a private key"}},
		"group with an address":           {"WorkloadGroup", "template: {address: 10.0.0.1, serviceAccount: a}", expectedProblem{Warning, "spec.template.address", "10.0.0.1", "its own address"}},
		"rule without issuer":             {"RequestAuthentication", "jwtRules: [{jwksUri: 'https://issuer.example/keys'}]", expectedProblem{Warning, "spec.jwtRules[0].issuer", "", "tokens of all issuers"}},
		"rule without keys":               {"RequestAuthentication", "jwtRules: [{audiences: [a]}]", expectedProblem{Error, "spec.jwtRules[0].jwksUri", "", "contains no keys"}},
		"only exclusions":                 {"Sidecar", "egress: [{hosts: ['~two/*']}]", expectedProblem{Warning, "spec.egress[0].hosts", "~two/*", "only excludes hosts"}},
		"excluded namespace":              {"Sidecar", "egress: [{hosts: ['*/*', '~a_b/*']}]", expectedProblem{Error, "spec.egress[0].hosts[1]", "~a_b/*", "not a namespace"}},
		"entry's port name":               {"ServiceEntry", "hosts: [a.com]\nports: [{number: 80}]", expectedProblem{Error, "spec.ports[0]", "", "set name"}},
		"entry's protocol":                {"ServiceEntry", "hosts: [a.com]\nports: [{number: 80, name: x, protocol: HTPP}]", expectedProblem{Error, "spec.ports[0].protocol", "HTPP", "did you mean HTTP"}},
		"ports of one number":             {"ServiceEntry", "hosts: [a.com]\nports: [{number: 80, name: x}, {number: 80, name: y}]", expectedProblem{Error, "spec.ports[1].number", "80", "ports 0 and 1"}},
		"static by name":                  {"ServiceEntry", "hosts: [a.com]\nresolution: STATIC\nports: [{number: 80, name: x}]\nendpoints: [{address: b.com}]", expectedProblem{Error, "spec.endpoints[0].address", "b.com", "set resolution: DNS"}},
		"static of nothing":               {"ServiceEntry", "hosts: [a.com]\nresolution: STATIC\nports: [{number: 80, name: http}]", expectedProblem{Warning, "spec.endpoints", "", "resolution STATIC requires endpoints or a workloadSelector"}},
		"unresolved endpoints":            {"ServiceEntry", "hosts: [a.com]\nports: [{number: 80, name: x}]\nendpoints: [{address: 1.1.1.1}]", expectedProblem{Error, "spec.endpoints", "", "resolution: STATIC"}},
		"wildcard to resolve":             {"ServiceEntry", "hosts: ['*.a.com']\nresolution: DNS\nports: [{number: 80, name: x}]", expectedProblem{Error, "spec.hosts[0]", "*.a.com", "proxies cannot resolve a wildcard by DNS"}},
		"endpoints and selector":          {"ServiceEntry", "hosts: [a.com]\nresolution: STATIC\nports: [{number: 80, name: x}]\nendpoints: [{address: 1.1.1.1}]\nworkloadSelector: {labels: {a: b}}", expectedProblem{Error, "spec.workloadSelector", "", "remove one of the two"}},
		"endpoint's port name":            {"ServiceEntry", "hosts: [a.com]\nresolution: STATIC\nports: [{number: 80, name: http}]\nendpoints: [{address: 1.1.1.1, ports: {htp: 1}}]", expectedProblem{Error, "spec.endpoints[0].ports[htp]", "htp", "did you mean http"}},
		"addresses":                       {"ServiceEntry", "hosts: [a.com]\nresolution: DNS\naddresses: [1.2.3]\nports: [{number: 80, name: http}]", expectedProblem{Error, "spec.addresses[0]", "1.2.3", "10.0.0.0/8"}},
		"workload without address":        {"WorkloadEntry", "labels: {a: b}", expectedProblem{Error, "spec.address", "", "IP address"}},
		"workload's port":                 {"WorkloadEntry", "address: 1.1.1.1\nports: {http: 0}", expectedProblem{Error, "spec.ports[http]", "0", "port number"}},
		"bare egress host":                {"Sidecar", "egress: [{hosts: [reviews]}]", expectedProblem{Error, "spec.egress[0].hosts[0]", "reviews", `"./reviews"`}},
		"egress without hosts":            {"Sidecar", "egress: [{bind: 1.1.1.1}]", expectedProblem{Error, "spec.egress[0].hosts", "", "the list of hosts is empty"}},
		"egress host's name":              {"Sidecar", "egress: [{hosts: [./reviews]}]", expectedProblem{Warning, "spec.egress[0].hosts[0]", "./reviews", "svc.cluster.local"}},
		"certificate without a name":      {"Gateway", "selector: {a: b}\nservers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: 'sds://'}}]", expectedProblem{Error, "spec.servers[0].tls.credentialName", "sds://", "write sds://"}},
		"ports without a port":            {"PeerAuthentication", "selector: {matchLabels: {a: b}}\nportLevelMtls: {}", expectedProblem{Warning, "spec.portLevelMtls", "", "lists no port"}},
		"warm-up without a duration":      {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {warmup: {minimumPercent: 10}}}", expectedProblem{Warning, "spec.trafficPolicy.loadBalancer.warmup", "", "set duration"}},
		"CA of an unverified server":      {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: /ca}}", expectedProblem{Warning, "spec.trafficPolicy.tls.caCertificates", "/ca", "disables the verification"}},
		"names of an unverified server":   {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, subjectAltNames: [b, c]}}", expectedProblem{Warning, "spec.trafficPolicy.tls.subjectAltNames", "b, c", "disables the verification"}},
		"match of a pseudo-header":        {"VirtualService", "hosts: [a]\nhttp: [{match: [{headers: {':x': {exact: b}}}], route: [{destination: {host: a}}]}]", expectedProblem{Warning, "spec.http[0].match[0].headers[:x]", ":x", "remove the colon"}},
		"names of allowed headers":        {"VirtualService", "hosts: [a]\nhttp: [{corsPolicy: {allowHeaders: ['x-a, x-b']}, route: [{destination: {host: a}}]}]", expectedProblem{Warning, "spec.http[0].corsPolicy.allowHeaders[0]", "x-a, x-b", "list each name separately"}},
		"ports of all workloads":          {"PeerAuthentication", "portLevelMtls: {80: {mode: STRICT}}", expectedProblem{Error, "spec.portLevelMtls", "", "add a selector"}},
		"denies nothing":                  {"AuthorizationPolicy", "action: DENY", expectedProblem{Error, "spec.rules", "", "denies nothing"}},
		"denies all":                      {"AuthorizationPolicy", "selector: {matchLabels: {a: b}}", expectedProblem{Info, "spec.rules", "", "denies every request"}},
		"custom without provider":         {"AuthorizationPolicy", "action: CUSTOM\nrules: [{}]", expectedProblem{Error, "spec.provider", "", "set provider.name"}},
		"source of nothing":               {"AuthorizationPolicy", "rules: [{from: [{source: {}}]}]", expectedProblem{Error, "spec.rules[0].from[0].source", "", "an empty value would match every request"}},
		"no source":                       {"AuthorizationPolicy", "rules: [{from: [{}]}]", expectedProblem{Error, "spec.rules[0].from[0]", "", "the source is missing"}},
		"empty from":                      {"AuthorizationPolicy", "rules: [{from: []}]", expectedProblem{Error, "spec.rules[0].from", "", "empty list"}},
		"empty principals":                {"AuthorizationPolicy", "rules: [{from: [{source: {namespaces: [a], principals: []}}]}]", expectedProblem{Error, "spec.rules[0].from[0].source.principals", "", "an empty list"}},
		"principal with scheme":           {"AuthorizationPolicy", "rules: [{from: [{source: {principals: ['spiffe://td/ns/a/sa/b']}}]}]", expectedProblem{Error, "spec.rules[0].from[0].source.principals[0]", "spiffe://td/ns/a/sa/b", `"td/ns/a/sa/b"`}},
		"lower-case method":               {"AuthorizationPolicy", "rules: [{to: [{operation: {methods: [get]}}]}]", expectedProblem{Warning, "spec.rules[0].to[0].operation.methods[0]", "get", "write GET"}},
		"policy's port":                   {"AuthorizationPolicy", "rules: [{to: [{operation: {ports: [http]}}]}]", expectedProblem{Error, "spec.rules[0].to[0].operation.ports[0]", "http", "port number"}},
		"wildcard inside":                 {"AuthorizationPolicy", "rules: [{to: [{operation: {paths: ['/a*b']}}]}]", expectedProblem{Error, "spec.rules[0].to[0].operation.paths[0]", "/a*b", "beginning or the end"}},
		"unknown attribute":               {"AuthorizationPolicy", "rules: [{when: [{key: 'request.header[x]', values: [a]}]}]", expectedProblem{Error, "spec.rules[0].when[0].key", "request.header[x]", "did you mean request.headers[x]"}},
		"attribute without values":        {"AuthorizationPolicy", "rules: [{when: [{key: source.ip}]}]", expectedProblem{Error, "spec.rules[0].when[0]", "", "has no values"}},
		"field without effect":            {"WorkloadEntry", "address: 10.0.0.1\nnetwork: one", expectedProblem{Warning, "spec.network", "", "no effect in this version"}},
		"zones by region labels":          {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {zoneAwareLbSetting: {failoverPriority: [topology.kubernetes.io/zone]}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.zoneAwareLbSetting.failoverPriority[0]", "topology.kubernetes.io/zone", "zone-aware routing always compares region, zone and subzone"}},
		"zones and localities":            {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {localityLbSetting: {}, zoneAwareLbSetting: {}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.zoneAwareLbSetting", "", "cannot be combined"}},
		"distribute and failover":         {"DestinationRule", "host: a\ntrafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: a, to: {b: 100}}], failover: [{from: a, to: b}]}}}", expectedProblem{Error, "spec.trafficPolicy.loadBalancer.localityLbSetting", "", "distribute, failover and failoverPriority exclude each other"}},
		"tunnel to nowhere":               {"DestinationRule", "host: a\ntrafficPolicy: {tunnel: {targetPort: 80}}", expectedProblem{Error, "spec.trafficPolicy.tunnel.targetHost", "", ""}},
		"tunnel by what":                  {"DestinationRule", "host: a\ntrafficPolicy: {tunnel: {protocol: GET, targetHost: b, targetPort: 80}}", expectedProblem{Error, "spec.trafficPolicy.tunnel.protocol", "GET", "not a supported method to request a tunnel"}},
		"no status that is an error":      {"DestinationRule", "host: a\ntrafficPolicy: {outlierDetection: {outlierDetectionHttpErrorCodes: [99]}}", expectedProblem{Error, "spec.trafficPolicy.outlierDetection.outlierDetectionHttpErrorCodes[0]", "99", ""}},
		"unsafe without effect":           {"WasmPlugin", "url: file:///a.wasm\nverificationKey: x", expectedProblem{Error, "spec.verificationKey", "", "would run"}},
		"revoked by whom":                 {"DestinationRule", "host: a\ntrafficPolicy: {tls: {mode: ISTIO_MUTUAL, caCrl: /crl}}", expectedProblem{Error, "spec.trafficPolicy.tls.caCrl", "/crl", "has no effect on certificates of the mesh"}},
		"CRL and Secret":                  {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: a, caCrl: /crl}}]", expectedProblem{Error, "spec.servers[0].tls.caCrl", "/crl", "has no effect together with Secrets"}},
		"cipher suite":                    {"Gateway", "selector: {a: b}\nservers: [{port: {number: 80, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b, cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA255]}}]", expectedProblem{Error, "spec.servers[0].tls.cipherSuites[0]", "ECDHE-ECDSA-AES128-GCM-SHA255", "did you mean ECDHE-ECDSA-AES128-GCM-SHA256"}},
		"unknown field of Service":        {"Service", "ports: [{port: 80, protcol: TCP}]", expectedProblem{Error, "spec.ports[0].protcol", "", "did you mean protocol"}},
		"Service's type":                  {"Service", "type: Clusterip\nports: [{port: 80}]", expectedProblem{Error, "spec.type", "Clusterip", "did you mean ClusterIP"}},
		"Service without ports":           {"Service", "selector: {a: b}", expectedProblem{Error, "spec.ports", "", "needs ports"}},
		"Service's port":                  {"Service", "ports: [{port: 0}]", expectedProblem{Error, "spec.ports[0].port", "0", "not between 1 and 65535"}},
		"nameless ports":                  {"Service", "ports: [{port: 80}, {port: 81, name: b}]", expectedProblem{Error, "spec.ports[0].name", "", "each needs a name"}},
		"ports of one name":               {"Service", "ports: [{port: 80, name: a}, {port: 81, name: a}]", expectedProblem{Error, "spec.ports[1].name", "a", "ports 0 and 1"}},
		"target port in quotes":           {"Service", "ports: [{port: 80, targetPort: '8080'}]", expectedProblem{Error, "spec.ports[0].targetPort", "8080", "without quotes"}},
		"addresses of a Service":          {"Service", "clusterIPs: [10.0.0.1, nowhere]\nports: [{port: 80}]", expectedProblem{Error, "spec.clusterIPs[1]", "nowhere", "not an IP address"}},
		"address of a Service":            {"Service", "clusterIP: none\nports: [{port: 80}]", expectedProblem{Error, "spec.clusterIP", "none", "None for a headless"}},
		"no external name":                {"Service", "type: ExternalName", expectedProblem{Error, "spec.externalName", "", "DNS name"}},
		"session affinity":                {"Service", "sessionAffinity: ClientIP\nports: [{port: 80}]", expectedProblem{Warning, "spec.sessionAffinity", "ClientIP", "no effect"}},
	} {
		t.Run(name, func(t *testing.T) { checkProblem(t, wrap(c.kind, c.spec), c.want) })
	}
}

func TestProblemsInHeadersAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want expectedProblem
	}{
		"unknown kind":       {"apiVersion: networking.istio.io/v1\nkind: VirtualServce\nmetadata: {name: x}", expectedProblem{Error, "kind", "VirtualServce", "did you mean VirtualService"}},
		"group of Istio":     {"apiVersion: security.istio.io/v1\nkind: Gateway\nmetadata: {name: x}", expectedProblem{Error, "apiVersion", "security.istio.io/v1", "networking.istio.io/v1"}},
		"misspelled group":   {"apiVersion: networking.isto.io/v1\nkind: Gateway\nmetadata: {name: x}", expectedProblem{Error, "apiVersion", "networking.isto.io/v1", "networking.istio.io/v1"}},
		"kind and group":     {"apiVersion: security.istio.io/v1\nkind: Gatewy\nmetadata: {name: x}", expectedProblem{Error, "kind", "Gatewy", "did you mean Gateway, with apiVersion networking.istio.io/v1"}},
		"kind of no Istio":   {"apiVersion: networking.istio.io/v1\nkind: Deployment\nmetadata: {name: x}", expectedProblem{Error, "kind", "Deployment", "one of: DestinationRule"}},
		"unknown version":    {"apiVersion: networking.istio.io/v2\nkind: Gateway\nmetadata: {name: x}", expectedProblem{Error, "apiVersion", "networking.istio.io/v2", "networking.istio.io/v1beta1"}},
		"no kind":            {"apiVersion: v1\nmetadata: {name: x}", expectedProblem{Error, "kind", "", "no kind"}},
		"no version":         {"kind: Service\nmetadata: {name: x}", expectedProblem{Error, "apiVersion", "", "no apiVersion"}},
		"unsupported kind":   {"apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nmetadata: {name: x}\nspec: {any: [thing]}", expectedProblem{Warning, "kind", "IstioOperator", "not supported"}},
		"unknown metadata":   {"apiVersion: v1\nkind: Service\nmetadata: {name: x, lables: {}}\nspec: {ports: [{port: 80}]}", expectedProblem{Error, "metadata.lables", "", "did you mean labels"}},
		"spec outside":       {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nports: [{port: 80}]\nspec: {}", expectedProblem{Error, "ports", "", "under spec"}},
		"unknown top field":  {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspce: {}\nspec: {ports: [{port: 80}]}", expectedProblem{Error, "spce", "", "did you mean spec"}},
		"namespace":          {"apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: A_B}\nspec: {ports: [{port: 80}]}", expectedProblem{Error, "metadata.namespace", "A_B", "lower-case"}},
		"label's key":        {"apiVersion: v1\nkind: Service\nmetadata: {name: x, labels: {'a b': c}}\nspec: {ports: [{port: 80}]}", expectedProblem{Error, "metadata.labels[a b]", "a b", "label's key"}},
		"label is a number":  {"apiVersion: v1\nkind: Service\nmetadata: {name: x, labels: {v: 1}}\nspec: {ports: [{port: 80}]}", expectedProblem{Error, "metadata.labels[v]", "1", "quotes"}},
		"Service of no spec": {"apiVersion: v1\nkind: Service\nmetadata: {name: x}", expectedProblem{Error, "spec", "", "needs a spec"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := Parse("f.yaml", []byte(c.text))
			if c.want.severity == Warning {
				if p := problems[0]; len(problems) != 1 || p.Severity != Warning || p.Field != c.want.field || !strings.Contains(p.Message, c.want.message) {
					t.Errorf("got %v", problems)
				}
				return
			}
			checkProblem(t, c.text, c.want)
		})
	}
}

func TestKindsWithoutEffectAreSkipped(t *testing.T) {
	for apiVersion, list := range map[string]string{
		"v1": "Pod ServiceAccount Namespace ConfigMap Endpoints", "apps/v1": "Deployment ReplicaSet StatefulSet DaemonSet",
		"batch/v1": "Job CronJob", "networking.k8s.io/v1": "Ingress NetworkPolicy", "discovery.k8s.io/v1": "EndpointSlice",
		"rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole ClusterRoleBinding", "autoscaling/v2": "HorizontalPodAutoscaler",
		"policy/v1": "PodDisruptionBudget", "apiextensions.k8s.io/v1": "CustomResourceDefinition", "mesh.pilotfish.dev/v1": "Mesh",
		"serving.knative.dev/v1": "Service", "argoproj.io/v1alpha1": "Rollout", "example.com/v1": "Gateway Deploymnt",
	} {
		for kind := range strings.FieldsSeq(list) {
			text := "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {generateName: any-}\ndata: {x: 1}\n"
			resources, problems := Parse("f", []byte(text))
			if len(resources) != 0 || len(problems) != 1 || problems[0].Severity != Info {
				t.Errorf("%s: %v", kind, problems)
			}
		}
	}
	for apiVersion, list := range map[string]string{
		"install.istio.io/v1alpha1": "IstioOperator", "extensions.istio.io/v1alpha1": "TrafficExtension", "gateway.networking.k8s.io/v1": "Gateway HTTPRoute GatewayClass",
	} {
		for kind := range strings.FieldsSeq(list) {
			_, problems := Parse("f", []byte("apiVersion: "+apiVersion+"\nkind: "+kind+"\nmetadata: {name: any}\n"))
			if len(problems) != 1 || problems[0].Severity != Warning {
				t.Errorf("%s: %v", kind, problems)
			}
		}
	}
}

func TestAllProblemsOfADocumentAreReported(t *testing.T) {
	_, problems := Parse("f", []byte(wrap("VirtualService", "hsts: [a]\nhttp: [{timeout: 5, route: [{destination: {hots: a}, weight: x}]}]")))
	if len(problems) != 4 {
		t.Errorf("got %d: %v", len(problems), problems)
	}
}

func TestProblemsAreInTheOrderOfTheText(t *testing.T) {
	spec := "hosts: [a]\nhttp: [{headers: {request: {set: {'a b': c, 'd e': f, 'g h': i, 'j k': l}}}, route: [{destination: {host: a}}]}]"
	for range 20 {
		_, problems := Parse("f", []byte(wrap("VirtualService", spec)))
		if len(problems) != 4 || problems[0].Value != "a b" || problems[3].Value != "j k" {
			t.Fatalf("got %v", problems)
		}
	}
}

func TestFieldsWithoutEffectExist(t *testing.T) {
	for name, note := range ignoredFields {
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if note.remedy == "" {
			t.Errorf("%s has no remedy", name)
		}
	}
}

func TestConditionsOnClaims(t *testing.T) {
	const to = "route: [{destination: {host: a}}]"
	rule := func(claim, more string) string {
		return "hosts: [a]\n" + more + "\nhttp: [{match: [{headers: {'" + claim + "': {exact: b}}}], " + to + "}]"
	}
	for claim, want := range map[string]string{
		"@request.auth.claims.groups": "groups", "@Request.Auth.Claims.realm.Roles": "realm Roles", "@request.auth.claims[a.b][https://c/d]": "a.b https://c/d",
		"@request.auth.claims[a.b]": "a.b", "@request.auth.claims": "", "@request.auth.claims.": "", "@request.auth.claims..a": "", "@request.auth.claims[]": "",
		"@request.auth.claims[a][]": "", "@request.auth.claims[a": "", "@request.auth.claims[": "", "@request.auth.claimsa": "",
	} {
		path, is := RoutingClaim(claim)
		if got := strings.Join(path, " "); got != want || !is {
			t.Errorf("%s is %q, %v", claim, got, is)
		}
		resources, problems := Parse("f.yaml", []byte(wrap("VirtualService", rule(claim, "gateways: [edge]"))))
		if (want != "") != (len(resources) == 1 && len(problems) == 0) {
			t.Errorf("%s: %v", claim, problems)
		}
	}
	for _, header := range []string{"request.auth.claims.groups", "@request.auth.claim", "x"} {
		if _, is := RoutingClaim(header); is {
			t.Errorf("%s is parsed as a claim", header)
		}
	}
	at := "spec.http[0].match[0].headers[@request.auth.claims.a]"
	checkProblem(t, wrap("VirtualService", rule("@request.auth.claims.a", "gateways: [mesh]")), expectedProblem{Warning, at, "@request.auth.claims.a", "never matches"})
	checkProblem(t, wrap("VirtualService", rule("@request.auth.claims[]", "")), expectedProblem{Error, "spec.http[0].match[0].headers[@request.auth.claims[]]", "@request.auth.claims[]", "the name of the claim is missing"})
}
