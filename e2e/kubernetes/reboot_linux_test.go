package kubernetes

import (
	"strings"
	"testing"
)

// TestRebootedNodeHasNoPodUnprotected simulates a power loss: the node's processes and the contents of its memory are
// lost.
func TestRebootedNodeHasNoPodUnprotected(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	web, _ := c.createRunning(t, injected(p, c.envoySidecar(t, p)))
	db, dbAddress := c.createRunning(t, pod("db"))
	c.waitAnswer(t, "before", web, dbAddress, "200 through=[outbound]")
	c.node.kill()
	c.node.boot(t)
	c.waitFor(t, "its pods run again", func() error {
		for _, name := range []string{web, db} {
			if err := c.checkField("pod/"+name, `{.status.containerStatuses[?(@.name=="app")].restartCount} {.status.conditions[?(@.type=="Ready")].status}`, "1 True"); err != nil {
				return err
			}
		}
		return nil
	})
	address := func(pod string) string {
		return strings.TrimSpace(c.mustKubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.podIP}"))
	}
	c.waitAnswer(t, "out of the pod", web, address(db), "200 through=[outbound] host=db")
	c.waitAnswer(t, "into the pod", db, address(web), "200 through=[inbound] host=web")
	if list := c.node.conflist(t); strings.Count(list, `"pilotfish-cni"`) != 1 {
		t.Errorf("the CNI configuration: %s", list)
	}
}

// TestRestartedRuntimeChangesNothing restarts what the node's pods do not live from.
func TestRestartedRuntimeChangesNothing(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	web, _ := c.createRunning(t, injected(p, c.envoySidecar(t, p)))
	_, dbAddress := c.createRunning(t, pod("db"))
	c.node.stopPart(t, "containerd")
	c.node.startContainerd(t)
	c.waitAnswer(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db")
	name := c.create(t, attempt("attempt", dbAddress))
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}
