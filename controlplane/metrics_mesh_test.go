package controlplane_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// conflicting are two services with the same address, and two with the same port of the same workloads.
const conflicting = `---
apiVersion: v1
kind: Service
metadata: {name: bytes}
spec: {clusterIP: 10.9.9.9, selector: {app: same}, ports: [{name: tcp, port: 81, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: more}
spec: {clusterIP: 10.9.9.9, selector: {app: same}, ports: [{name: tls, port: 82, targetPort: 8080}, {name: tcp, port: 81, targetPort: 8081}]}
`

func TestMetricsCountTheMeshAndItsFindings(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), fmt.Sprintf(shopService, "reviews")+fmt.Sprintf(shopRoute, "reviews", "/a")+
		strings.Replace(fmt.Sprintf(shopRoute, "reviews", "/b"), "{name: reviews,", "{name: second,", 1)+"kind: Nonsense\napiVersion: v1\nmetadata: {name: x}\n"+conflicting)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	wants := []string{
		"pilot_services 3\n", "pilot_virt_services 2\n", "pilot_eds_no_instances 4\n", "pilot_vservice_dup_domain 1\n", "pilot_destrule_subsets 0\n",
		"pilot_conflict_outbound_listener_tcp_over_current_tcp 1\n", "pilot_conflict_inbound_listener 1\n",
		`pilotfish_findings{code="PF0201",severity="warning"} 1`, `pilotfish_findings{code="PF0002",severity="error"} 1`,
		`pilot_push_triggers{type="global"} 1`, "istiod_uptime_seconds ", "pilot_info{",
	}
	testenv.Eventually(t, "the metrics describe the mesh", func() error {
		_, text := p.get("/metrics")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				return fmt.Errorf("the metrics lack %q", want)
			}
		}
		return nil
	})
}

// Each metric has a row in the documentation, and vice versa.
func TestEveryMetricIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "control-plane.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, controlplane.Config{ConfigDirs: []string{t.TempDir()}, Ports: freePorts})
	_, scraped := p.get("/metrics")
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:pilot|pilotfish|citadel|istiod|auto_reg)\w*) `).FindAllStringSubmatch(scraped, -1) {
		if !strings.Contains(string(text), "`"+m[1]) && !strings.Contains(string(text), "…"+m[1][strings.LastIndexByte(m[1], '_'):]) {
			t.Errorf("docs/control-plane.md does not mention %s", m[1])
		}
	}
}
