package kubernetes

import (
	"strings"
	"testing"
)

// TestRebootedNodeHasNoPodUnprotected takes the node's power: its processes, and what it kept in memory, are gone.
func TestRebootedNodeHasNoPodUnprotected(t *testing.T) {
	c := theCluster(t)
	c.deploy(t)
	p := pod("web")
	web, _ := c.running(t, injected(p, c.envoySidecar(t, p)))
	db, dbAddress := c.running(t, pod("db"))
	c.answers(t, "before", web, dbAddress, "200 through=[outbound]")
	c.node.kill()
	c.node.boot(t)
	c.within(t, "its pods run again", func() error {
		for _, name := range []string{web, db} {
			if err := c.is("pod/"+name, `{.status.containerStatuses[?(@.name=="app")].restartCount} {.status.conditions[?(@.type=="Ready")].status}`, "1 True"); err != nil {
				return err
			}
		}
		return nil
	})
	address := func(pod string) string {
		return strings.TrimSpace(c.mustKubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.podIP}"))
	}
	c.answers(t, "out of the pod", web, address(db), "200 through=[outbound] host=db")
	c.answers(t, "into the pod", db, address(web), "200 through=[inbound] host=web")
	if list := c.node.conflist(t); strings.Count(list, `"pilotfish-cni"`) != 1 {
		t.Errorf("the CNI configuration: %s", list)
	}
}

// TestRestartedRuntimeChangesNothing restarts what the node's pods do not live from.
func TestRestartedRuntimeChangesNothing(t *testing.T) {
	c := theCluster(t)
	c.deploy(t)
	p := pod("web")
	web, _ := c.running(t, injected(p, c.envoySidecar(t, p)))
	_, dbAddress := c.running(t, pod("db"))
	c.node.stopPart(t, "containerd")
	c.node.startContainerd(t)
	c.answers(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db")
	name := c.create(t, attempt("attempt", dbAddress))
	if escaped := c.answered(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}
