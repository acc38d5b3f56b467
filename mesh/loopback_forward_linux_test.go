package mesh

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// listenOnlyOn returns applications that listen only on the addresses, and an application that calls them.
func listenOnlyOn(addresses ...string) (spec, services string) {
	spec = "  config: istio\n  workloads:\n"
	for n, address := range append([]string{""}, addresses...) {
		spec += fmt.Sprintf(`
  - name: app%d
    command: ["${PILOTFISH}", caller]
    env: {PILOTFISH_APP_ADDRESS: "%s", PORT_TCP: "9000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: tcp, port: 9000}]
`, n, address)
		services += fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: app%d}
spec:
  selector: {app: app%d}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: tcp, port: 9000}]
---
`, n, n)
	}
	return spec, services
}

func TestApplicationsAreReachableOnAnyListenAddress(t *testing.T) {
	needNamespaces(t)
	at := []string{"127.0.0.1", "::1", "::%only"}
	cfg := testConfig(t, listenOnlyTopology(t, at))
	cfg.Network, cfg.AgentCommand = Captured{}, []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	caller := "http://" + m.Instances()[0].App.String() + ":9080"
	reached := func() {
		t.Helper()
		for n, address := range at {
			name := fmt.Sprintf("app%d", n+1)
			var answer string
			eventually(t, "a request to "+name+", which listens at "+address, func() bool {
				answer = getBody(m.client("app0"), caller+"/call/"+name)
				return strings.HasPrefix(answer, "200 "+name+" was called by")
			})
			eventually(t, "a connection to "+name+", which listens at "+address, func() bool {
				answer = getBody(m.client("app0"), caller+"/tcp/"+name+":9000")
				return strings.HasPrefix(answer, "200 "+name+" was called from")
			})
		}
	}
	reached()
	for n := range at { // forwarders do not block the next start of the application
		i := m.instanceOf(m.Instances()[n+1])
		before := i.app.snapshot().PID
		i.app.restart()
		eventually(t, "the next process", func() bool { now := i.app.snapshot(); return now.State == ProcessRunning && now.PID != before })
	}
	reached()
	for _, i := range m.Status(t.Context()).Instances {
		if i.App.Restarts > 1 {
			t.Errorf("%s was started %d times more: %v", i.Name, i.App.Restarts, i.App.LastExit)
		}
	}
}

func listenOnlyTopology(t *testing.T, at []string) *topology.Topology {
	t.Helper()
	spec, services := listenOnlyOn(at...)
	return topologyWith(t, spec, services)
}
