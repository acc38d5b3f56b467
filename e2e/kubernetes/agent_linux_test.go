package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const agentNamespace = "pilotfish-system"

// manifest is the node agent's as it is shipped. changes are pairs of texts, the old and the new.
func manifest(t *testing.T, changes ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "examples", "cni", "node-agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			t.Fatalf("the manifest has no %q", changes[i])
		}
	}
	return strings.NewReplacer(changes...).Replace(string(text))
}

// deploy applies the node agent's manifest and waits until its pods run.
func (c *cluster) deploy(t *testing.T, changes ...string) {
	t.Helper()
	c.apply(t, manifest(t, changes...))
	c.waitFor(t, "the node agent is ready, and none of before is left", func() error {
		out, err := c.kubectl("get", "daemonset", "pilotfish-cni-node", "-n", agentNamespace, "-o",
			"jsonpath={.metadata.generation} {.status.observedGeneration} {.status.updatedNumberScheduled} {.status.numberReady} {.status.desiredNumberScheduled}")
		if err != nil {
			return err
		}
		var generation, observed, updated, ready, desired int
		if _, err := fmt.Sscan(out, &generation, &observed, &updated, &ready, &desired); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		if generation != observed || desired != len(c.nodes) || updated != desired || ready != desired {
			return errors.New("generation, observed, updated, ready, desired: " + out)
		}
		return nil
	})
}

// conflist is what the node's runtime reads.
func (n *node) conflist(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, "etc/cni/net.d/10-pods.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestShippedManifestInstallsThePlugin(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	if list := c.node.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the CNI configuration: %s", list)
	}
	log := c.mustKubectl(t, "logs", "-n", agentNamespace, "daemonset/pilotfish-cni-node")
	if strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the agent is not content: %s", log)
	}
}
