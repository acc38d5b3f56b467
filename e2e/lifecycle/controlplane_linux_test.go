package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// documents are the configuration of the mesh: one service with a port for each protocol. Plaintext is let in, for
// clients that have no sidecar.
const documents = `
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: default}
spec:
  selector: {app: shop}
  ports:
  - {name: http, port: 8080}
  - {name: http2, port: 8081}
  - {name: grpc, port: 8082}
  - {name: tcp, port: 8083}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: PERMISSIVE}}
`

// plane is a control plane with the registry of the pods that receive traffic.
type plane struct {
	*controlplane.Server
	registry *config.MemoryStore
}

func startPlane(t testing.TB) *plane {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(file, []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &plane{registry: config.NewMemoryStore()}
	var err error
	p.Server, err = controlplane.New(controlplane.Config{
		ConfigDirs: []string{file}, Stores: []config.Store{p.registry}, StateDir: filepath.Join(dir, "state"),
		Ports: controlplane.Ports{Plain: controlplane.FreePort, Secure: controlplane.FreePort, Monitoring: controlplane.FreePort, Tokens: controlplane.NoPort},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the control plane ended with %v", err)
		}
	}))
	testenv.Eventually(t, "the control plane serves", func() error {
		if ok, reason := p.Health(); !ok {
			return errors.New(reason)
		}
		return nil
	})
	return p
}

// join adds pods to the registry, so that they receive traffic; leave removes them.
func (p *plane) join(pods ...*pod) {
	for _, pod := range pods {
		p.registry.Put(&config.Resource{
			Key: pod.key(), APIVersion: "networking.istio.io/v1", Labels: pod.labels(),
			Spec: &networking.WorkloadEntry{Address: pod.proxy, Labels: pod.labels(), ServiceAccount: "default"},
		})
	}
}

func (p *plane) leave(pods ...*pod) {
	for _, pod := range pods {
		p.registry.Delete(pod.key())
	}
}
