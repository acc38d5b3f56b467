package controlplane_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// gatewaySecrets returns the number of Secrets that a control plane sends to a gateway with an account.
func gatewaySecrets(t *testing.T, p *testServer, account string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(asBearer(t.Context(), p.token("edge", account)), 20*time.Second)
	defer cancel()
	_, got, err := gatewayStream(ctx, t, p.dial(), "router", "edge", xds.SecretType, "kubernetes://one")
	if err != nil {
		t.Fatal(err)
	}
	return len(got.GetResources())
}

// withoutWorkloads returns the documents of an edge without its WorkloadEntries.
func withoutWorkloads(t *testing.T, cfg controlplane.Config) (*testServer, *config.MemoryStore) {
	t.Helper()
	_, dir, _ := withSecret(t, "")
	resources, err := dirstore.New(dirstore.Config{Paths: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	store := config.NewMemoryStore()
	for _, kind := range []config.Kind{config.Secret, config.Gateway} {
		for _, r := range resources.List(kind) {
			store.Put(r)
		}
	}
	cfg.Stores, cfg.Ports = []config.Store{store}, freePorts
	return start(t, cfg), store
}

func TestGatewayWithoutKnownWorkloadGetsNoSecret(t *testing.T) {
	log := &lockedBuffer{}
	p, store := withoutWorkloads(t, controlplane.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if n := gatewaySecrets(t, p, "gateway"); n != 0 {
		t.Errorf("it gets %d secrets", n)
	}
	if text := log.String(); !strings.Contains(text, "edge/gateway") || !strings.Contains(text, config.AccountsAnnotation) {
		t.Errorf("the log does not name the account and the remedy: %s", text)
	}
	testenv.Eventually(t, "the finding is shown", func() error {
		if _, page := p.get("/debug/problems"); !strings.Contains(page, string(config.GatewayAccountUnknown)) {
			return errors.New("not yet")
		}
		return nil
	})
	store.Put(&config.Resource{
		Key:  config.Key{Kind: config.WorkloadEntry, Namespace: "edge", Name: "edge"},
		Spec: &networking.WorkloadEntry{Address: "192.0.2.1", Labels: map[string]string{"app": "edge"}, ServiceAccount: "gateway"},
	})
	testenv.Eventually(t, "the gateway's account gets the Secret once its workload is known", func() error {
		if gatewaySecrets(t, p, "gateway") != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if n := gatewaySecrets(t, p, "reviews"); n != 0 {
		t.Errorf("another account gets %d secrets", n)
	}
}

func TestGatewayGetsItsSecretWhenItsWorkloadIsAdded(t *testing.T) {
	p, store := withoutWorkloads(t, controlplane.Config{})
	ctx, cancel := context.WithTimeout(asBearer(t.Context(), p.token("edge", "gateway")), time.Minute)
	defer cancel()
	stream, got, err := gatewayStream(ctx, t, p.dial(), "router", "edge", xds.SecretType, "kubernetes://one")
	if err != nil || len(got.GetResources()) != 0 {
		t.Fatalf("first it gets %v, %v", got, err)
	}
	store.Put(&config.Resource{
		Key:  config.Key{Kind: config.WorkloadEntry, Namespace: "edge", Name: "edge"},
		Spec: &networking.WorkloadEntry{Address: "192.0.2.1", Labels: map[string]string{"app": "edge"}, ServiceAccount: "gateway"},
	})
	if got, err := stream.Recv(); err != nil || len(got.GetResources()) != 1 {
		t.Errorf("then it gets %v, %v", got, err)
	}
}

func TestGatewayAccountsOfThePlatformAndOfTheWholeNamespace(t *testing.T) {
	declared := []snapshot.Workload{{Namespace: "edge", ServiceAccount: "gateway", Labels: map[string]string{"app": "edge"}}}
	for name, c := range map[string]struct {
		cfg            controlplane.Config
		gateway, other int
	}{
		"declared workloads":  {controlplane.Config{Workloads: declared}, 1, 0},
		"the whole namespace": {controlplane.Config{NamespaceGatewaySecrets: true}, 1, 1},
	} {
		c.cfg.StateDir = filepath.Join(t.TempDir(), "state")
		p, _ := withoutWorkloads(t, c.cfg)
		if gateway, other := gatewaySecrets(t, p, "gateway"), gatewaySecrets(t, p, "reviews"); gateway != c.gateway || other != c.other {
			t.Errorf("%s: the gateway gets %d, another account %d", name, gateway, other)
		}
	}
}

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
