package config

import (
	"encoding/pem"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// The expected results were compared with those of Envoy 1.36.4 and 1.40.0.
func TestExpressionsThatProxiesAccept(t *testing.T) {
	for _, good := range []string{
		"response.code >= 400", "size(request.path) > 3", "int(request.size) > 3", "uint(3) == 3u", "double(3) > 1.0", "bytes('a') == b",
		"type(1) == int", "duration('3s') < duration('4s')", "timestamp('2020-01-01T00:00:00Z') < request.time", "matches(request.path, '^/a')",
		"has(request.useragent)", "request.path.size() > 1", "request.path.contains('a')", "request.time.getHours('UTC') > 2",
		"request.method in ['GET', 'POST']", "{'a': 1}['a'] == 1", "request.headers['x'] + 'a' == 'b'", "-1 < 2", "!true", "true ? false : true",
		"0x1F == 31", "1e3 > 2.0", `'a\tb' == r'\x'`, "null == null", "5 % 2 == 1", "a[0][1].b.c", "((1))", `request.headers["a\"b"] == 'x'`,
		"!has(request.useragent) || !(request.useragent.startsWith('Amazon-Route53-Health-Check-Service'))",
	} {
		if err := CheckCEL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, why := range map[string]string{
		"": "empty", "a ==": "ends", "a b": "not expected", "(a": "ends", "'a": "not closed", "a == 'b\n'": "end of its line", "if == 1": "reserved",
		"string(a) == 'b'": "no function string", "['a'].all(x, x == 'a')": "no function all", "a.lowerAscii()": "no function", "size()": "0 arguments",
		"has(a)": "needs a field", "a.matches('[')": "regular expression", "a.matches('" + strings.Repeat("(a|b)", 60) + "')": "size limit",
		"a @ b": "is not allowed in an expression", "1.2.3": "not a number", strings.Repeat("(", 200) + "1" + strings.Repeat(")", 200): "nested", "'''a'''": "triple",
		"a.": "not the name", "{1}": "expected", "[1, ]": "expected", strings.Repeat("a", 5000): "at most",
	} {
		if err := CheckCEL(bad); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.60s: the error is %v, want %q", bad, err, why)
		}
	}
}

func FuzzCEL(f *testing.F) {
	for _, e := range []string{"response.code >= 400", "a.b('c', [1, {2: 3}]) ? -d : !e", `r'\' + "\""`} {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, e string) {
		_ = unknownCELRoot(e)
		if CheckCEL(e) == nil && strings.ContainsAny(e, "\x00") {
			t.Errorf("%q", e)
		}
	})
}

func TestLogFormatsThatProxiesAccept(t *testing.T) {
	for format, why := range map[string]string{
		"": "", "plain 100%%": "", "%REQ(:METHOD)% %RESP(X?Y):10% %START_TIME(%Y-%m-%d)%\n": "", "%CEL(request.path.startsWith('a') ? 'b' : 'c')%": "",
		"100%": "does not begin a command", "%REQ%": "needs arguments", "%REQ(a?b?c)%": "a header", "%NO_SUCH%": "not all proxies", "%PROTOCOL(x)%": "no arguments",
		"%PROTOCOL:3%": "cannot be limited", "%FILTER_STATE(a:FOO)%": "PLAIN or TYPED", "%CEL(a ==)%": "ends",
	} {
		err := CheckLogFormat(format)
		if why == "" && err != nil || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%q: the error is %v, want %q", format, err, why)
		}
	}
}

func FuzzLogFormat(f *testing.F) {
	f.Add("%REQ(a)% %% %CEL(a)%")
	f.Fuzz(func(_ *testing.T, format string) { _ = CheckLogFormat(format) })
}

func TestInvalidTelemetryAndPluginsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		kind, spec string
		want       expectedProblem
	}{
		"filter":         {"Telemetry", `accessLogging: [{filter: {expression: "response.code >"}}]`, expectedProblem{Error, "spec.accessLogging[0].filter.expression", "response.code >", "not accept this expression"}},
		"attribute":      {"Telemetry", `accessLogging: [{filter: {expression: "respons.code > 1"}}]`, expectedProblem{Warning, "spec.accessLogging[0].filter.expression", "respons.code > 1", "respons is not an attribute"}},
		"provider":       {"Telemetry", `accessLogging: [{providers: [{}]}]`, expectedProblem{Error, "spec.accessLogging[0].providers[0].name", "", "the name is missing"}},
		"sampling":       {"Telemetry", `tracing: [{randomSamplingPercentage: 101}]`, expectedProblem{Error, "spec.tracing[0].randomSamplingPercentage", "101", "not a percentage"}},
		"two tracers":    {"Telemetry", `tracing: [{providers: [{name: a}, {name: b}]}]`, expectedProblem{Error, "spec.tracing[0].providers", "", "one provider"}},
		"tag of nothing": {"Telemetry", `tracing: [{customTags: {a: {}}}]`, expectedProblem{Error, "spec.tracing[0].customTags[a]", "", "the tag has no value"}},
		"header's name":  {"Telemetry", `tracing: [{customTags: {a: {header: {name: "a b"}}}}]`, expectedProblem{Error, "spec.tracing[0].customTags[a].header.name", "a b", "not the name of a header"}},
		"formatter":      {"Telemetry", `tracing: [{customTags: {a: {formatter: {value: "%X%"}}}}]`, expectedProblem{Error, "spec.tracing[0].customTags[a].formatter.value", "%X%", "not all proxies"}},
		"label's name":   {"Telemetry", `metrics: [{overrides: [{tagOverrides: {a-b: {value: "'x'"}}}]}]`, expectedProblem{Error, "spec.metrics[0].overrides[0].tagOverrides[a-b]", "a-b", "label"}},
		"removed":        {"Telemetry", `metrics: [{overrides: [{tagOverrides: {a: {operation: REMOVE, value: x}}}]}]`, expectedProblem{Error, "spec.metrics[0].overrides[0].tagOverrides[a].value", "x", "does not allow a value"}},
		"without value":  {"Telemetry", `metrics: [{overrides: [{tagOverrides: {a: {}}}]}]`, expectedProblem{Error, "spec.metrics[0].overrides[0].tagOverrides[a].value", "", "needs a value"}},
		"interval":       {"Telemetry", `metrics: [{reportingInterval: 5s}]`, expectedProblem{Warning, "spec.metrics[0].reportingInterval", "", "no effect"}},
		"custom metric":  {"Telemetry", `metrics: [{overrides: [{match: {customMetric: x}}]}]`, expectedProblem{Warning, "spec.metrics[0].overrides[0].match.customMetric", "x", "only the standard metrics"}},
		"no module":      {"WasmPlugin", `phase: AUTHN`, expectedProblem{Error, "spec.url", "", "the URL of the module is missing"}},
		"scheme":         {"WasmPlugin", `url: "ftp://a/b"`, expectedProblem{Error, "spec.url", "ftp://a/b", "agents cannot fetch modules by ftp"}},
		"checksum":       {"WasmPlugin", "url: a\nsha256: abc", expectedProblem{Error, "spec.sha256", "abc", "not a checksum"}},
		"agent's own":    {"WasmPlugin", "url: a\nvmConfig: {env: [{name: ISTIO_META_WASM_X, value: y}]}", expectedProblem{Error, "spec.vmConfig.env[0].name", "ISTIO_META_WASM_X", "names with this prefix configure the agent"}},
		"twice":          {"WasmPlugin", "url: a\nvmConfig: {env: [{name: X, value: y}, {name: X, value: z}]}", expectedProblem{Error, "spec.vmConfig.env[1].name", "X", "duplicate name"}},
		"port":           {"WasmPlugin", "url: a\nmatch: [{ports: [{number: 70000}]}]", expectedProblem{Error, "spec.match[0].ports[0].number", "70000", "not a port"}},
		"few threads":    {"ProxyConfig", "concurrency: -1", expectedProblem{Error, "spec.concurrency", "-1", "not between 0 and"}},
	} {
		t.Run(name, func(t *testing.T) { checkProblem(t, wrap(c.kind, c.spec), c.want) })
	}
}

func TestInvalidMeshConfigurationsAreRefused(t *testing.T) {
	for text, why := range map[string]string{
		`{"accessLogFormat": "%X%"}`:                                                             "not all proxies",
		`{"accessLogFormat": "x", "accessLogEncoding": "JSON"}`:                                  "not a JSON object",
		`{"accessLogFormat": "{\"a\": \"%X%\"}", "accessLogEncoding": "JSON"}`:                   "not all proxies",
		`{"extensionProviders": [{}]}`:                                                           "no name",
		`{"extensionProviders": [{"name": "a"}, {"name": "a"}]}`:                                 "two providers",
		`{"extensionProviders": [{"name": "a", "envoyFileAccessLog": {}}]}`:                      "the path is missing",
		`{"defaultProviders": {"tracing": ["a"]}}`:                                               "no extension provider",
		`{"connectTimeout": "-1s"}`:                                                              "at least 1ms",
		`{"connectTimeout": "0s"}`:                                                               "at least 1ms",
		`{"connectTimeout": "9999999999s"}`:                                                      "Envoy's maximum",
		`{"protocolDetectionTimeout": "-1s"}`:                                                    "negative",
		`{"tcpKeepalive": {"time": "-1s"}}`:                                                      "negative",
		`{"proxyListenPort": 70000}`:                                                             "between",
		`{"proxyInboundListenPort": 15001}`:                                                      "different ports",
		`{"proxyHttpPort": 15006}`:                                                               "another listener",
		`{"defaultHttpRetryPolicy": {"attempts": 2, "perTryTimeout": "-1s"}}`:                    "at least 1ms",
		`{"defaultConfig": {"tracing": {"sampling": 150}}}`:                                      "not a percentage",
		`{"localityLbSetting": {"distribute": [{"from": "*", "to": {"a": 50}}]}}`:                "sum 100",
		`{"accessLogFile": "/var/log/"}`:                                                         "a folder",
		`{"extensionProviders": [{"name": "a", "envoyFileAccessLog": {"path": "/"}}]}`:           "a folder",
		`{"extensionProviders": [{"name": "a", "opentelemetry": {"http": {"timeout": "-1s"}}}]}`: "negative",
		`{"extensionProviders": [{"name": "a", "opentelemetry": {"http": {"headers": [{"name": "a b", "value": "c"}]}}}]}`:                        "not the name of a header",
		`{"extensionProviders": [{"name": "a", "opentelemetry": {"http": {"headers": [{"name": ":path", "value": "c"}]}}}]}`:                      "part of the request line",
		`{"extensionProviders": [{"name": "a", "opentelemetry": {"grpc": {"initialMetadata": [{"name": "", "value": "c"}]}}}]}`:                   "not the name of a header",
		`{"extensionProviders": [{"name": "a", "zipkin": {"path": "a\nb"}}]}`:                                                                     "line breaks",
		`{"connectTimeout": "1s", "tcpKeepalive": {"time": "600s"}, "defaultHttpRetryPolicy": {"attempts": 0}, "protocolDetectionTimeout": "0s"}`: "",
		`{"accessLogFile": "/dev/stdout", "defaultProviders": {"metrics": ["prometheus"]}}`:                                                       "",
	} {
		mesh := &meshconfig.MeshConfig{}
		if err := protojson.Unmarshal([]byte(text), mesh); err != nil {
			t.Fatal(err)
		}
		if _, err := CheckMesh(mesh); (why == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: the problems are %v, want %q", text, err, why)
		}
	}
	warnings, err := CheckMesh(&meshconfig.MeshConfig{IngressClass: "x", AccessLogFile: "y"})
	if err != nil || len(warnings) != 1 || warnings[0].Field != "ingressClass" {
		t.Errorf("%v %v", warnings, err)
	}
}

// Agents reject all roots if one is invalid. They would then not receive the CA's next root.
func TestInvalidMeshRootsAreRefused(t *testing.T) {
	authority := testpki.New(t, "mesh")
	root := string(authority.PEM())
	leaf, key := authority.Server(t, "a.example")
	for name, c := range map[string]struct{ pem, why string }{
		"no PEM":                 {"x", "no certificate"},
		"nothing":                {"", "no certificate"},
		"a key":                  {string(key), "no certificate"},
		"cut off":                {root + root[:len(root)/2], "incomplete"},
		"no certificate in PEM":  {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), "cannot be read"},
		"a server's certificate": {root + string(leaf), "not the certificate of an authority"},
		"two roots":              {root + string(testpki.New(t, "other").PEM()), ""},
	} {
		_, err := CheckMesh(&meshconfig.MeshConfig{CaCertificates: []*meshconfig.MeshConfig_CertificateData{
			{CertificateData: &meshconfig.MeshConfig_CertificateData_Pem{Pem: root}}, {CertificateData: &meshconfig.MeshConfig_CertificateData_Pem{Pem: c.pem}},
		}})
		if (c.why == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "caCertificates[1].pem")) {
			t.Errorf("%s: the error is %v, want %q", name, err, c.why)
		}
		if (sds.CheckRoots([]string{root, c.pem}) == nil) != (c.why == "") {
			t.Errorf("%s: the agent's check has another result", name)
		}
	}
	warnings, err := CheckMesh(&meshconfig.MeshConfig{CaCertificates: []*meshconfig.MeshConfig_CertificateData{
		{CertificateData: &meshconfig.MeshConfig_CertificateData_SpiffeBundleUrl{SpiffeBundleUrl: "https://bundles.example"}},
	}})
	if err != nil || len(warnings) != 1 || warnings[0].Field != "caCertificates[0].spiffeBundleUrl" {
		t.Errorf("%v %v", warnings, err)
	}
}
