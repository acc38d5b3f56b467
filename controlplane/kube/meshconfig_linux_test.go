package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// meshConfigMap returns a manifest of the ConfigMap with a mesh configuration that sets a field.
func meshConfigMap(namespace, name, field string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata:\n  mesh: |\n    %s\n", name, namespace, field)
}

// runMeshConfig opens the mesh configuration of a namespace, and reads it until the test ends.
func runMeshConfig(t *testing.T, client *Client, namespace, revision string) *MeshConfigMap {
	t.Helper()
	m, err := OpenMeshConfig(t.Context(), client, namespace, revision, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx, func() {}) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

func awaitMesh(t *testing.T, m *MeshConfigMap, rootNamespace string) {
	t.Helper()
	testenv.Eventually(t, "the root namespace is "+rootNamespace, func() error {
		if got := m.Mesh().GetRootNamespace(); got != rootNamespace {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

func TestMeshConfigurationFollowsItsConfigMap(t *testing.T) {
	cluster := testcluster.Shared(t)
	client := newClusterClient(t, cluster.Kubeconfig)
	namespace := cluster.Namespace(t)
	m := runMeshConfig(t, client, namespace, "canary")
	if mesh := m.Mesh(); mesh != nil {
		t.Fatalf("without a ConfigMap, the mesh configuration is %v", mesh)
	}
	cluster.Apply(t, meshConfigMap(namespace, "istio", "rootNamespace: other-revision"))
	cluster.Apply(t, meshConfigMap(namespace, "istio-canary", "rootNamespace: first"))
	awaitMesh(t, m, "first")
	cluster.Apply(t, meshConfigMap(namespace, "istio-canary", "rootNamespace: second"))
	awaitMesh(t, m, "second")
	cluster.Apply(t, meshConfigMap(namespace, "istio-canary", "rootNamespace: [not, a, name]"))
	testenv.Eventually(t, "the invalid content is reported", func() error {
		problems := m.Problems()
		if len(problems) != 1 || problems[0].Code != config.MeshConfigRefused || problems[0].At.File != "ConfigMap "+namespace+"/istio-canary" {
			return fmt.Errorf("the problems are %v", problems)
		}
		return nil
	})
	awaitMesh(t, m, "second")
	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace+"/configmaps/istio-canary"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the defaults apply", func() error {
		if m.Mesh() != nil || len(m.Problems()) > 0 {
			return errors.New("the removed configuration is still in effect")
		}
		return nil
	})
}

func TestInvalidMeshConfigurationStopsTheStart(t *testing.T) {
	cluster := testcluster.Shared(t)
	client := newClusterClient(t, cluster.Kubeconfig)
	namespace := cluster.Namespace(t)
	cluster.Apply(t, meshConfigMap(namespace, "istio", "rootNamespace: [not, a, name]"))
	_, err := OpenMeshConfig(t.Context(), client, namespace, "default", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "ConfigMap "+namespace+"/istio") {
		t.Errorf("the error does not name the ConfigMap: %v", err)
	}
}
