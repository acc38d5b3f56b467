package controlplane_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// memorySource is a source that is synced when the test closes its channel.
type memorySource struct {
	*config.MemoryStore
	synced chan struct{}
}

func (s memorySource) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (s memorySource) Synced() <-chan struct{} { return s.synced }

func (s memorySource) Health() (ok bool, reason string) {
	select {
	case <-s.synced:
		return true, ""
	default:
		return false, "the objects of the kind Pod are missing"
	}
}

func (s memorySource) Problems() []config.Problem { return nil }

func (s memorySource) Documents() []config.Document { return nil }

// TestServerIsReadyWhenItsSourcesAreSynced: before, /ready names what is missing.
func TestServerIsReadyWhenItsSourcesAreSynced(t *testing.T) {
	source := memorySource{config.NewMemoryStore(), make(chan struct{})}
	server, err := controlplane.New(controlplane.Config{
		StateDir: filepath.Join(t.TempDir(), "state"), Ports: freePorts, Sources: []controlplane.Source{source},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &testServer{Server: server, t: t}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if code, body := p.get("/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "Pod are missing") {
		t.Errorf("before the sync, /ready returns %d: %s", code, body)
	}
	source.Put(&config.Resource{Key: config.Key{Kind: config.Service, Namespace: "a", Name: "b"}, Spec: &config.ServiceSpec{Ports: []config.ServicePort{{Port: 80, Protocol: "TCP"}}}})
	close(source.synced)
	testenv.Eventually(t, "the server is ready", func() error {
		ok, reason := server.Health()
		if !ok {
			return errors.New(reason)
		}
		return nil
	})
	if code, body := p.get("/debug/registryz"); code != http.StatusOK || !strings.Contains(body, "b.a.svc") {
		t.Errorf("the service of the source is not in the registry: %d: %s", code, body)
	}
}
