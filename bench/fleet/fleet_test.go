package fleet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bench/fleet"
	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%d, namespace: ns0}
spec: {hosts: [s%[1]d.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %s}]}
`

// The fleet must subscribe to all resources to which an Envoy subscribes, and detect changes. Otherwise its measurements
// would be meaningless.
func TestFleetReceivesConfigurationAndReportsChanges(t *testing.T) {
	dir := t.TempDir()
	write := func(i int, address string) {
		t.Helper()
		file := filepath.Join(dir, fmt.Sprintf("s%d.yaml", i))
		if err := os.WriteFile(file, fmt.Appendf(nil, entry, i, address), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		write(i, "10.0.0.1")
	}
	address := startPlane(t, dir)
	f := fleet.New()
	defer func() { _ = f.Disconnect(struct{}{}, nil) }()
	var cold, changed, back fleet.Report
	if err := f.Connect(fleet.Options{Address: address, Proxies: 5, Namespaces: 2, Slow: 1, Refusing: 1, Timeout: 30 * time.Second}, &cold); err != nil {
		t.Fatal(err)
	}
	if cold.Clients != 5 || cold.Bytes < 5*20*500 {
		t.Errorf("first connection: %+v", cold)
	}
	if err := f.Expect(fleet.Sign{Text: "10.0.0.77", Types: []string{"ClusterLoadAssignment"}}, nil); err != nil {
		t.Fatal(err)
	}
	since := time.Now().UnixNano()
	write(3, "10.0.0.77")
	if err := f.Await(since, &changed); err != nil {
		t.Fatal(err)
	}
	if changed.Clients != 5 || changed.Responses != 5 || changed.Bytes > 5*1000 {
		t.Errorf("changed endpoints of one service: %+v", changed)
	}
	if err := f.Reconnect(struct{}{}, &back); err != nil {
		t.Fatal(err)
	}
	if changed.Refused == 0 {
		t.Error("the refusing client has sent no NACK")
	}
	if back.Clients != 5 || back.Bytes > 5*1000 {
		t.Errorf("after a reconnection: %+v", back)
	}
}

func startPlane(t *testing.T, dir string) (address string) {
	t.Helper()
	p, err := controlplane.New(controlplane.Config{
		ConfigDirs: []string{dir}, StateDir: t.TempDir(),
		Ports: controlplane.Ports{Plain: controlplane.FreePort, Secure: controlplane.NoPort, Monitoring: controlplane.NoPort, Tokens: controlplane.NoPort},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p.PlainAddr().String()
}
