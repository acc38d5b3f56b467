package mesh

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func TestControlSocketServesStatusAndCommands(t *testing.T) {
	cfg := testConfig(t, testTopology(t, oneApp))
	if _, err := Connect(cfg.RuntimeDir, ""); err == nil || !strings.Contains(err.Error(), "no mesh is running") {
		t.Errorf("Connect without a running mesh: %v", err)
	}
	m := startMesh(t, cfg)
	m.waitReady()
	ctx := context.Background()
	var absent *NotRunningError
	if _, err := Connect(cfg.RuntimeDir, "other"); !errors.As(err, &absent) || !strings.Contains(err.Error(), m.Name()) {
		t.Errorf("Connect with the name of another mesh: %v", err)
	}
	c, err := Connect(cfg.RuntimeDir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Status(ctx)
	if err != nil || s.Mesh != m.Name() || !s.Ready || len(s.Instances) != 1 {
		t.Errorf("status is %+v (%v)", s, err)
	}
	if err := c.StopControlPlane(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Status(ctx); err != nil || s.Control.Running || s.Ready {
		t.Errorf("status after StopControlPlane: %+v (%v)", s.Control, err)
	}
	if err := c.StopControlPlane(ctx); err == nil || !strings.Contains(err.Error(), "is not running") {
		t.Errorf("stopping the stopped control plane: %v", err)
	}
	if err := c.StartControlPlane(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(ctx, "nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("restart of an unknown workload: %v", err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	<-m.ended
	if m.err != nil {
		t.Error(m.err)
	}
	if running := RunningMeshes(cfg.RuntimeDir); len(running) != 0 {
		t.Errorf("processes %v still run after Stop", running)
	}
}

func TestStatusTableShowsProblemsAndReasons(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := Status{
		Mesh: "shop", PID: 42, Started: now.Add(-90 * time.Second), Network: "127.77.0.0/16",
		Control: ControlPlaneStatus{Running: true, Since: now.Add(-time.Minute), Address: "127.77.0.1:15012", Problems: []config.Problem{
			{Severity: config.Error, At: config.Position{File: "vs.yaml", Line: 7, Column: 3}, Field: "spec.hosts", Message: "wrong"},
			{Severity: config.Info, Message: "not for us"},
		}},
		Instances: []InstanceStatus{
			{
				Name: "page", ProxyAddress: "127.77.1.1", Ready: true, App: &ProcessStatus{State: ProcessRunning, PID: 7},
				Agent: ProcessStatus{State: ProcessRunning, PID: 8, Restarts: 2}, EnvoyPID: 9, RequestsPerSecond: 12.4,
				Certificate: &CertificateStatus{SPIFFEID: "spiffe://td/ns/default/sa/page", Expires: now.Add(23 * time.Hour)},
				Config:      ConfigStatus{State: ConfigInSync},
			},
			{
				Name: "bad", ProxyAddress: "127.77.2.1", Reasons: []string{"application exited\nwith status 3"},
				App:    &ProcessStatus{State: ProcessFailed, LastExit: &Exit{Code: 3, Ran: time.Second}},
				Agent:  ProcessStatus{State: ProcessRunning, PID: 10},
				Config: ConfigStatus{State: ConfigRejected, Rejected: []Rejection{{Type: "Listener", Resources: []string{"l1"}, Reason: "no such filter"}}},
			},
		},
	}
	var out strings.Builder
	if err := s.WriteTable(&out, now); err != nil {
		t.Fatal(err)
	}
	want := `mesh shop  127.77.0.0/16  pid 42  up for 1m
control plane 127.77.0.1:15012  running for 1m  configuration: 1 refused, 0 warnings

   WORKLOAD  ADDRESS     APPLICATION  SIDECAR            ENVOY  CERTIFICATE                      CONFIG    REQ/S
✓  page      127.77.1.1  pid 7        pid 8, 2 restarts  pid 9  ns/default/sa/page, 23h00m left  in sync   12
✗  bad       127.77.2.1  failed       pid 10             -      -                                rejected  0.0

  bad is not ready: application exited with status 3
  bad: its application last exited with status 3 after 1s
  bad rejected Listener l1: no such filter
  vs.yaml:7:3: error: spec.hosts: wrong
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s\n%s", diff, out.String())
	}
}
