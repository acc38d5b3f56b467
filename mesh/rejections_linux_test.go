package mesh

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRejectedListenerReportsPortConflictRemedy(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, writeTopology(t, dir, `
  config: config
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], env: {PILOTFISH_APP_ADDRESS: 0.0.0.0}, ports: [{name: http, port: 9083, protocol: HTTP}]}
`))
	cfg.AgentCommand = []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {app: a}, ports: [{name: http, port: 9083}]}\n"
	if err := os.WriteFile(filepath.Join(dir, "config", "service.yaml"), []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	m.find("the remedy", func(e Event) bool {
		return e.Instance == "a" && strings.Contains(e.Line, "cannot bind") && strings.Contains(e.Line, "${APP_ADDRESS}")
	})
	config := m.instance("a").Config
	if config.State != ConfigRejected || len(config.Rejected) != 1 || !strings.Contains(config.Rejected[0].Remedy, "${APP_ADDRESS}") {
		t.Errorf("status has %+v", config)
	}
}
