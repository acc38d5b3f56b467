package kubernetes

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// remove deletes the daemon set, so that its agent removes the plugin, and waits until the plugin is removed.
func (c *cluster) remove(t *testing.T) {
	t.Helper()
	c.mustKubectl(t, "delete", "daemonset", "pilotfish-cni-node", "-n", agentNamespace, "--ignore-not-found", "--timeout=100s")
	c.waitFor(t, "the agent's pod is gone", func() error {
		out, err := c.kubectl("get", "pods", "-n", agentNamespace, "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
}

// compact is JSON without white space, to be compared.
func compact(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDeletedDaemonSetTakesThePluginAlongAndItsPodsEnd(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	web := c.create(t, injected(pod("web"), idleSidecar()))
	c.waitFor(t, "the pod runs", func() error { return c.checkField("pod/"+web, "{.status.phase}", "Running") })
	c.remove(t)
	if list := c.node.conflist(t); compact(t, list) != compact(t, c.node.list()) {
		t.Errorf("the CNI configuration is not what it was: %s", list)
	}
	if _, err := os.Stat(filepath.Join(c.node.dir, "opt/cni/bin/pilotfish-cni")); err != nil {
		t.Errorf("no tombstone lets the sandbox end that was made with the plugin: %v", err)
	}
	if out, err := c.node.run("ls", "-A", "/run/istio-cni"); err != nil || strings.Contains(out, "kubeconfig") {
		t.Errorf("the run folder: %s %v", out, err)
	}
	c.mustKubectl(t, "delete", "pod", web, "--timeout=100s")
	_, db := c.createRunning(t, pod("db"))
	plain, _ := c.createRunning(t, injected(pod("plain"), idleSidecar()))
	if answer := c.get(plain, db); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Errorf("a pod without the plugin: %s", answer)
	}
}

func TestRemadeDaemonSetProtectsPodsAgain(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.remove(t)
	c.deploy(t)
	_, db := c.createRunning(t, pod("db"))
	name := c.create(t, attempt("attempt", db))
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}

// TestNoPodStartsUnprotectedWhenTheAgentsRightsGoWithIt deletes the whole manifest: the agent is no longer permitted to
// check whether a new daemon set follows.
func TestNoPodStartsUnprotectedWhenTheAgentsRightsGoWithIt(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	_, db := c.createRunning(t, pod("db"))
	if out, err := c.kubectlWith(manifest(t), "delete", "-f", "-", "--timeout=100s"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if list := c.node.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the plugin is gone, though nobody said that it was to go: %s", list)
	}
	name := c.create(t, attempt("attempt", db))
	c.waitEvent(t, name, "check that the node agent runs on this node")
	c.deploy(t)
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}
