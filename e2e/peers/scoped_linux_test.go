package peers

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestScopedSidecarStartsWithoutAControlPlane: it starts from its agent's last accepted configuration, with the
// services that it used before. It receives a service that it requests meanwhile once a control plane answers.
func TestScopedSidecarStartsWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	m := newGRPCMesh(t, "127.193.4", `
apiVersion: v1
kind: Service
metadata: {name: used, namespace: default}
spec: {selector: {app: used}, ports: [{name: grpc, port: 7000, targetPort: 7001}]}
---
apiVersion: v1
kind: Service
metadata: {name: new, namespace: default}
spec: {selector: {app: used}, ports: [{name: grpc, port: 7000, targetPort: 7001}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: used, namespace: default}
spec: {address: NET.11, labels: {app: used, security.istio.io/tlsMode: disabled}, serviceAccount: used}
`)
	listen(t, m.address(11)+":7001")
	const used, unused = "used.default.svc.cluster.local:7000", "new.default.svc.cluster.local:7000"
	s := m.workload(m.address(20), "default/caller", "app=\"caller\"\n", "DISABLE_ENVOY=false", "ENVOY_PATH="+testenv.Envoy(t),
		"ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_APP_ADDRESS="+m.address(22), "ISTIO_META_PILOTFISH_SCOPE=automatic",
	)
	testenv.Eventually(t, "the sidecar calls", func() error { return s.checkCall(used) })
	testenv.Eventually(t, "what it uses is kept", func() error { return checkStored(s, "outbound|7000||used.default.svc.cluster.local") })

	if err := m.plane.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	testenv.Eventually(t, "a sidecar that starts without a control plane calls what it used", func() error { return s.checkCall(used) })
	if err := s.checkCall(unused); err == nil {
		t.Error("without a control plane there is an answer of what was never used")
	}
	m.startPlane()
	testenv.Eventually(t, "what was asked for in vain is there", func() error { return s.checkCall(unused) })
	if err := s.checkCall(used); err != nil {
		t.Error(err)
	}
}

func checkStored(p *proxyless, cluster string) error {
	kept, err := os.ReadFile(filepath.Join(p.dir, "etc/istio/proxy/last-good/envoy.config.cluster.v3.Cluster.snapshot"))
	if err == nil && !bytes.Contains(kept, []byte(cluster)) {
		err = errors.New("not yet")
	}
	return err
}

// restart ends an agent and its Envoy and starts them again.
func (p *proxyless) restart(t testing.TB) {
	t.Helper()
	_ = p.agent.Process.Signal(syscall.SIGTERM)
	testenv.Eventually(t, "the agent ends", func() error {
		if p.agent.Process.Signal(syscall.Signal(0)) == nil {
			return errors.New("it runs")
		}
		return nil
	})
	next := exec.Command(p.agent.Path, p.agent.Args[1:]...)
	next.Dir, next.Env, next.Stdout, next.Stderr, next.WaitDelay = p.agent.Dir, p.agent.Env, p.output, p.output, time.Second
	p.agent = next
	start(t, next)
}
