package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// A file for Envoy's --config-yaml, which Istio's agent uses, has the same effect as an override.
func TestAnOverrideMergesAsEnvoyMergesIt(t *testing.T) {
	base := sidecar()
	base.ProxyConfig.ProxyAdminPort = 15000
	base.PrometheusPort, base.ReadinessPort = 15090, 15021
	base.Metadata = map[string]any{unpackMetadata: "false"} // the statistics sink would remove it
	yaml := `{static_resources: {clusters: [{name: more, type: STATIC, connect_timeout: 3s}]},
		stats_config: {use_all_default_tags: true, stats_tags: [{tag_name: a, regex: "(a=(.*?);)"}]},
		node: {metadata: {TEAM: shop, LABELS: {tier: front}}, locality: {zone: elsewhere}},
		stats_sinks: [{name: envoy.stat_sinks.statsd, typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, tcp_cluster_name: more}}],
		layered_runtime: {layers: [{name: mine, static_layer: {a: 1}}]},
		overload_manager: {refresh_interval: 2s}}`
	for i, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			base.Bind = addr(t, fmt.Sprintf("127.101.%d.1", 20+i))
			theirs := bootstrapOf(t, version, encoded(t, base), base, "--config-yaml", yaml)
			base.Bind = addr(t, fmt.Sprintf("127.101.%d.2", 20+i))
			base := base
			base.Override = []byte(yaml)
			ours := bootstrapOf(t, version, encoded(t, base), base)
			other := fmt.Sprintf("127.101.%d.1", 20+i)
			theirs = strings.ReplaceAll(theirs, other, base.Bind.String())
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("Envoy merges it differently (-Envoy +ours):\n%s", diff)
			}
		})
	}
}

// bootstrapOf runs an Envoy and returns the bootstrap in its config dump.
func bootstrapOf(t *testing.T, version, file string, c Config, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	start(t, version, dir, file, args...)
	var dump struct{ Configs []map[string]any }
	testenv.Eventually(t, "Envoy's admin interface", func() error {
		body, err := get("http://" + c.AdminAddress() + "/config_dump?mask=bootstrap")
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(body), &dump)
	})
	for _, section := range dump.Configs {
		if b, ok := section["bootstrap"].(map[string]any); ok {
			delete(b["node"].(map[string]any), "extensions")
			text, _ := json.MarshalIndent(b, "", " ")
			return string(text)
		}
	}
	t.Fatalf("the dump has no bootstrap: %v", dump)
	return ""
}

// start runs an Envoy until the test ends.
func start(t *testing.T, version, dir, file string, args ...string) {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), testenv.EnvoyOf(t, version), append([]string{"-c", file, "--concurrency", "1",
		"-l", "error", "--disable-hot-restart", "--allow-unknown-static-fields"}, args...)...)
	cmd.Dir = dir
	var out testenv.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of Envoy:\n%s", out.String())
		}
	})
}

func get(url string) (string, error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

func TestInvalidOverridesAreRefusedByName(t *testing.T) {
	cases := map[string]struct {
		override string
		want     []string
	}{
		"written twice":        {`{static_resources: {}, staticResources: {}}`, []string{"static_resources", "twice"}},
		"wrong kind":           {`{static_resources: {clusters: [{name: x, connect_timeout: fast}]}}`, []string{"clusters[4].connect_timeout", `"fast"`}},
		"wrong kind of object": {`{admin: yes}`, []string{"o.yaml", "admin"}},
		"no list":              {`{static_resources: {clusters: {name: x}}}`, []string{"static_resources.clusters"}},
		"node id":              {`{node: {id: someone}}`, []string{"node.id", "someone", "remove this change"}},
		"admin address":        {`{admin: {address: {socket_address: {address: 0.0.0.0, port_value: 15000}}}}`, []string{"admin.address", "proxyAdminPort"}},
		"admin gone":           {`{admin: null}`, []string{"admin.address"}},
		"ADS":                  {`{dynamic_resources: {ads_config: {grpc_services: [{envoy_grpc: {cluster_name: other}}]}}}`, []string{"dynamic_resources"}},
		"xds cluster":          {`{static_resources: {clusters: [{name: xds-grpc, connect_timeout: 9s}]}}`, []string{"changes the cluster xds-grpc"}},
		"sds cluster gone":     {`[{"op": "remove", "path": "/static_resources/clusters/2"}]`, []string{"removes the cluster sds-grpc"}},
		"two xds clusters":     {`[{"op": "copy", "from": "/static_resources/clusters/3", "path": "/static_resources/clusters/-"}]`, []string{"changes the cluster xds-grpc"}},
		"clusters gone":        {`{static_resources: null}`, []string{"removes the cluster xds-grpc"}},
		"operation":            {`[{"op": "remove", "path": "/node/metadata/NAME"}, {"op": "replace", "path": "/nowhere", "value": 1}]`, []string{"o.yaml: operation 2", "/nowhere", "pilotfish-agent bootstrap"}},
		"unknown operation":    {`[{"op": "merge", "path": "/node"}]`, []string{"operation 1", "merge"}},
		"failed test":          {`[{"op": "test", "path": "/node/id", "value": "x"}]`, []string{"operation 1", "test"}},
		"no operation":         {`[1]`, []string{"operation 1"}},
		"all removed":          {`[{"op": "replace", "path": "", "value": []}]`, []string{"o.yaml"}},
		"neither":              {`hello`, []string{"o.yaml", "neither an object", "nor a list"}},
		"host IP":              {`{node: {cluster: $(HOST_IP)}}`, []string{"o.yaml", "HOST_IP"}},
		"too large":            {strings.Repeat("#", maxInputSize+1), []string{"o.yaml", "4194305 bytes"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := sidecar()
			c.Override, c.OverrideFile = []byte(tc.override), "o.yaml"
			expectRefused(t, c, tc.want)
		})
	}
}

func aliasBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), ", "))
	}
	return b.String()
}

func expectRefused(t *testing.T, c Config, want []string) {
	t.Helper()
	for name, make := range map[string]func(Config) ([]byte, error){"Encode": Encode, "Render": Render} {
		_, err := make(c)
		if err == nil {
			t.Fatalf("%s accepts it", name)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error does not contain %q: %v", name, w, err)
			}
		}
	}
}

func TestInvalidCustomBootstrapsAreRefusedByName(t *testing.T) {
	cases := map[string]struct {
		custom string
		want   []string
	}{
		"open template":  {"{\n {{- if .nodeID }}\n}", []string{"c.json:3: unexpected EOF"}},
		"other option":   {"{\n\"node\": {\"id\": \"{{ .nodeId }}\"}}", []string{"c.json:2: option .nodeId is not known", "did you mean .nodeID?"}},
		"other function": {`{"node": {"id": "{{ nosuch }}"}}`, []string{"c.json:1", `function "nosuch" not defined`}},
		"no JSON of it":  {`{"node": {{ .nodeID }}`, []string{"c.json is neither JSON nor YAML"}},
		"list":           {`[]`, []string{"c.json", "not a bootstrap"}},
		"other node":     {`{"node": {"id": "x"}}`, []string{"c.json", "node.id"}},
		"other admin":    {`{"admin": {"address": {"pipe": {"path": "/x"}}}}`, []string{"c.json", "admin.address"}},
		"other cluster":  {`{"static_resources": {"clusters": [{"name": "sds-grpc"}]}}`, []string{"c.json", "sds-grpc"}},
		"wrong kinds":    {`{"static_resources": {"clusters": 1}}`, []string{"c.json: static_resources.clusters: 1"}},
		"wrong node":     {`{"node": 7}`, []string{"c.json: node: 7"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := sidecar()
			c.Custom, c.CustomFile = []byte(tc.custom), "c.json"
			expectRefused(t, c, tc.want)
		})
	}
}

func TestACustomBootstrapIsOverriddenToo(t *testing.T) {
	c := golden["custom"]()
	c.Override = []byte(`{static_resources: {clusters: [{name: mine, connect_timeout: 7s}]}}`)
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"connect_timeout": "7s"`, `"xds-grpc"`, `"sds-grpc"`, `"stats_flush_interval": "10s"`, NodeID(c)} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the result lacks %s:\n%s", want, text)
		}
	}
}

func TestNullRemovesAndEntriesOfTheSameNameMerge(t *testing.T) {
	c := golden["limited"]()
	c.Override = []byte(`{
		node: {metadata: {NAME: null, LABELS: {tier: front}}},
		layered_runtime: {layers: [{name: global config, static_layer: {re2.max_program_size.error_level: null, more: 1}}]},
		static_resources: {clusters: [{name: agent, connect_timeout: 2s}]},
		overload_manager: {actions: [{name: envoy.overload_actions.shrink_heap, triggers: [{name: envoy.resource_monitors.fixed_heap, scaled: {scaling_threshold: 0.5, saturation_threshold: 0.7}}]}]},
		bootstrap_extensions: [{name: envoy.bootstrap.internal_listener, typed_config: {buffer_size_kb: 128}}],
		stats_config: null}`)
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	got := decodedFile(t, text)
	clusters := got["static_resources"].(tree)["clusters"].([]any)
	if len(clusters) != 4 || clusters[1].(tree)["connect_timeout"] != "2s" {
		t.Errorf("the cluster was not merged with the existing one: %v", clusters)
	}
	metadata := got["node"].(tree)["metadata"].(tree)
	if _, has := metadata["NAME"]; has || metadata["LABELS"].(tree)["tier"] != "front" {
		t.Errorf("the metadata were not overridden: %v", metadata)
	}
	flags := got["layered_runtime"].(tree)["layers"].([]any)[0].(tree)["static_layer"].(tree)
	if _, has := flags["re2.max_program_size.error_level"]; has || flags["more"] != json.Number("1") {
		t.Errorf("the runtime flags were not overridden: %v", flags)
	}
	trigger := got["overload_manager"].(tree)["actions"].([]any)[0].(tree)["triggers"].([]any)[0].(tree)
	if _, both := trigger["threshold"]; both || trigger["scaled"] == nil {
		t.Errorf("two fields of a oneof are set: %v", trigger)
	}
	extension := got["bootstrap_extensions"].([]any)[0].(tree)["typed_config"].(tree)
	if extension["buffer_size_kb"] != json.Number("128") {
		t.Errorf("the extension was not changed: %v", extension)
	}
	if got["stats_config"] != nil {
		t.Error("null did not remove stats_config")
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	validate(t, testenv.Envoy(t), file)
}

func decodedFile(t *testing.T, text []byte) tree {
	t.Helper()
	got, err := decodeObject(text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSecretsAreNotShown(t *testing.T) {
	c := golden["tracing-lightstep"]()
	c.Override = []byte(`{static_resources: {secrets: [{name: s, tls_certificate: {private_key: {inline_string: sesame}, certificate_chain: {inline_string: public}}},
		{name: g, generic_secret: {secret: {inline_string: sesame}}}]},
		dynamic_resources: {ads_config: {}}, stats_sinks: [{name: envoy.stat_sinks.metrics_service, typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig,
		transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: lightstep}, initial_metadata: [{key: X-Api-Key, value: sesame}, {key: x-team, value: shop}]}}}]}`)
	shown, err := Render(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"sesame", "top-secret"} {
		if strings.Contains(string(shown), secret) {
			t.Errorf("%s is shown:\n%s", secret, shown)
		}
	}
	for _, open := range []string{"public", "shop"} {
		if !strings.Contains(string(shown), open) {
			t.Errorf("%s is not shown:\n%s", open, shown)
		}
	}
	written, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(written), "sesame") || strings.Count(string(written), "top-secret") != 1 {
		t.Errorf("Envoy's file does not contain each secret once:\n%s", written)
	}
}

func FuzzOverrideIsReadOrRefused(f *testing.F) {
	for _, seed := range []string{"", "{}", "[]", mergedOverride, `[{"op": "remove", "path": "/admin"}]`, `{"admin": null}`,
		`{static_resources: {clusters: [{name: xds-grpc}]}}`, `{tracing: {http: {name: x, typed_config: {"@type": x}}}}`,
		`{node: {metadata: {"@type": x}}}`, `[{"op":"copy","from":"","path":"/node/metadata/x"}]`, `{static_resources: {clusters: [null]}}`} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, text string, custom bool) {
		c := sidecar()
		if custom {
			c.Custom = []byte(text)
		} else {
			c.Override = []byte(text)
		}
		out, err := Encode(c)
		if err != nil || !c.isCustomized() {
			return
		}
		got, err := decode(decodedFile(t, out))
		if err != nil {
			t.Fatalf("the override was accepted, but its result cannot be parsed: %v", err)
		}
		want, err := Build(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkProtected(got, want, "the override"); err != nil {
			t.Fatal(err)
		}
	})
}

// If both a custom bootstrap and an override are configured, the error names the file that is invalid.
func TestErrorNamesTheInvalidOneOfTwoFiles(t *testing.T) {
	c := sidecar()
	c.Custom, c.CustomFile = []byte(`{"node": {"id": "someone-else"}}`), "whole.yaml"
	c.Override, c.OverrideFile = []byte(`{"stats_flush_interval": "6s"}`), "own.yaml"
	if _, err := Encode(c); err == nil || !strings.Contains(err.Error(), "whole.yaml") {
		t.Errorf("the error should name the custom bootstrap: %v", err)
	}
	c.Custom = []byte(`{"stats_flush_interval": "5s"}`)
	c.Override = []byte(`{"node": {"id": "someone-else"}}`)
	if _, err := Encode(c); err == nil || !strings.Contains(err.Error(), "own.yaml") {
		t.Errorf("the error should name the override: %v", err)
	}
}

func TestRenderedBootstrapHasNoPasswordOfAURL(t *testing.T) {
	c := sidecar()
	c.Metadata = map[string]any{"DB": "postgres://user:hunter2@db/x", "PLAIN": "https://example.com/a:b"}
	text, err := Render(c)
	if err != nil || bytes.Contains(text, []byte("hunter2")) || !bytes.Contains(text, []byte("https://example.com/a:b")) {
		t.Errorf("%v, %s", err, text)
	}
	if text, err := Encode(c); err != nil || !bytes.Contains(text, []byte("hunter2")) {
		t.Errorf("the file for Envoy lacks the password: %v", err)
	}
}
