package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestDryRunShowsSettingsWithSourcesAndTheBootstrap(t *testing.T) {
	golden, err := filepath.Abs("testdata/settings.table")
	if err != nil {
		t.Fatal(err)
	}
	testenv.InDir(t, map[string]string{
		"etc/istio/config/mesh": "defaultConfig:\n  discoveryAddress: 127.77.0.1:15012\n  concurrency: 1\n  tracing: {zipkin: {address: \"z:9411\"}}\n",
		"etc/istio/pod/labels":  "app=\"reviews\"\nversion=\"v1\"\n",
	})
	c, err := config.Resolve(config.Inputs{Env: []string{"POD_NAME=reviews-v1-1", "POD_NAMESPACE=default", "INSTANCE_IP=127.77.3.1",
		"PROXY_BIND_ADDRESS=127.77.3.1", "ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_APP_ADDRESS=127.77.3.2", "CA_PROVDER=x"}})
	if err != nil {
		t.Fatal(err)
	}
	table := printConfig(t, c, false, formatTable)
	if *update {
		if err := os.WriteFile(golden, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if diff := cmp.Diff(string(want), table); diff != "" {
		t.Errorf("the table differs from its golden file (accept it with -update):\n%s", diff)
	}
	for _, format := range []string{formatTable, formatJSON, formatYAML} {
		text := printConfig(t, c, true, format)
		for _, part := range []string{"discoveryAddress", "127.77.0.1:15012", "mesh file", "did you mean CA_PROVIDER", "dynamic_resources",
			"sidecar~127.77.3.1~reviews-v1-1.default~default.svc.cluster.local"} {
			if !strings.Contains(text, part) {
				t.Errorf("-o %s does not show %q", format, part)
			}
		}
	}
	var asJSON, asYAML any
	if err := json.Unmarshal([]byte(printConfig(t, c, true, formatJSON)), &asJSON); err != nil {
		t.Error(err)
	}
	if err := yaml.Unmarshal([]byte(printConfig(t, c, true, formatYAML)), &asYAML); err != nil {
		t.Error(err)
	}
	again, err := json.Marshal(asYAML)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &asYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(asJSON, asYAML); diff != "" {
		t.Errorf("JSON and YAML have different contents:\n%s", diff)
	}
}

func printConfig(t *testing.T, c *config.Config, withBootstrap bool, format string) string {
	t.Helper()
	r, err := newReport(c)
	if err != nil {
		t.Fatal(err)
	}
	if !withBootstrap {
		r.Bootstrap = nil
	}
	var out bytes.Buffer
	if err := r.print(&out, format); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

var update = flag.Bool("update", false, "write the golden files")
