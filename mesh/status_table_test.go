package mesh

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func table(t *testing.T, i InstanceStatus) string {
	t.Helper()
	var out strings.Builder
	if err := (Status{Instances: []InstanceStatus{i}}).WriteTable(&out, time.Now()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStatusShowsLastLinesOfFailingProcess(t *testing.T) {
	exit := &Exit{Code: 1, Tail: []string{"connecting", "no such\x1b[2J database"}}
	i := InstanceStatus{Name: "a", Reasons: []string{"application exited"}, App: &ProcessStatus{State: ProcessBackOff, LastExit: exit}}
	if got := table(t, i); !strings.Contains(got, "    │ connecting\n    │ no such\\u001b[2J database\n") {
		t.Errorf("printed %s", got)
	}
	i.Ready, i.App.State = true, ProcessRunning
	if got := table(t, i); strings.Contains(got, "connecting") || !strings.Contains(got, "its application last exited with status 1") {
		t.Errorf("once it is ready again, printed %s", got)
	}
}

func TestStatusMarksRejectedConfiguration(t *testing.T) {
	i := &topology.Instance{Name: "a", Workload: &topology.Workload{Type: topology.Service}, Proxy: netip.MustParseAddr("127.77.1.1"), App: netip.MustParseAddr("127.77.1.2")}
	client := xds.ClientStatus{Node: "sidecar~127.77.1.1~a.default~default", Types: []xds.TypeStatus{{
		TypeURL:  "type.googleapis.com/envoy.config.listener.v3.Listener",
		Rejected: &xds.Rejection{Resources: []string{"127.77.1.1_9080"}, Reason: "cannot bind '127.77.1.1:9080': Address already in use"},
	}}}
	s := InstanceStatus{Name: "a", Ready: true, Config: configStatus(i, []xds.ClientStatus{client}, true)}
	got := table(t, s)
	if strings.Contains(got, "✓") || !strings.Contains(got, "\n!  a") || !strings.Contains(got, "${APP_ADDRESS} (here 127.77.1.2") {
		t.Errorf("printed %s", got)
	}
	i.Workload.Type = topology.Gateway
	if c := configStatus(i, []xds.ClientStatus{client}, true); c.Rejected[0].Remedy != "" {
		t.Errorf("a gateway has the remedy %q", c.Rejected[0].Remedy)
	}
}
