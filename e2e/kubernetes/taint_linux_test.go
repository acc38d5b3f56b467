package kubernetes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const taint = "cni.istio.io/not-ready"

// allowUntaint applies the rights to remove the taint, until the end of the test.
func (c *cluster) allowUntaint(t *testing.T) {
	t.Helper()
	path := filepath.Join(testenv.Root(), "examples", "cni", "untaint.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, string(text))
	t.Cleanup(func() { c.mustKubectl(t, "delete", "-f", path) })
}

func (c *cluster) taints(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(c.mustKubectl(t, "get", "node", nodeName, "-o", "jsonpath={.spec.taints[*].key}"))
}

// TestNewNodeHasNoPodsBeforeItsAgentIsReady uses a node whose taint blocks the pods of the mesh until the agent is
// ready. The agent then removes that taint and no other.
func TestNewNodeHasNoPodsBeforeItsAgentIsReady(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.remove(t)
	c.allowUntaint(t)
	c.mustKubectl(t, "taint", "nodes", nodeName, taint+"=:NoSchedule", "pilotfish.test/other=:PreferNoSchedule")
	t.Cleanup(func() {
		_, _ = c.kubectl("taint", "nodes", nodeName, taint+"-")
		_, _ = c.kubectl("taint", "nodes", nodeName, "pilotfish.test/other-")
	})
	_, db := c.createRunning(t, tolerant(pod("db")))
	name := c.create(t, attempt("attempt", db))
	c.waitEvent(t, name, "untolerated taint")
	since := c.auditCount(t)
	c.deploy(t, "- {name: DAEMONSET_NAME, value: pilotfish-cni-node}",
		"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}\n        - {name: NOT_READY_TAINT, value: "+taint+"}")
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
	if left := c.taints(t); left != "pilotfish.test/other" {
		t.Errorf("taints of the node: %s", left)
	}
	used, refused := c.audit(t, since)
	if !used["get nodes"] || !used["patch nodes"] || len(refused) > 0 {
		t.Errorf("used: %v, refused: %v", used, refused)
	}
}

func tolerant(p object) object {
	p["spec"].(object)["tolerations"] = []any{object{"operator": "Exists"}}
	return p
}

// TestRightToUntaintIsForNothingElse uses the node agent's token as an attacker would.
func TestRightToUntaintIsForNothingElse(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.allowUntaint(t)
	agent := strings.TrimSpace(c.mustKubectl(t, "get", "pods", "-n", agentNamespace, "-l", "app=pilotfish-cni-node", "-o", "jsonpath={.items[0].metadata.name}"))
	bound := strings.TrimSpace(c.mustKubectl(t, "create", "token", "pilotfish-cni", "-n", agentNamespace, "--bound-object-kind=Pod", "--bound-object-name="+agent))
	free := strings.TrimSpace(c.mustKubectl(t, "create", "token", "pilotfish-cni", "-n", agentNamespace))
	c.mustKubectl(t, "taint", "nodes", nodeName, taint+"=:PreferNoSchedule", "pilotfish.test/other=:PreferNoSchedule")
	t.Cleanup(func() {
		_, _ = c.kubectl("taint", "nodes", nodeName, taint+"-")
		_, _ = c.kubectl("taint", "nodes", nodeName, "pilotfish.test/other-")
	})
	as := func(token string, args ...string) error {
		_, err := c.kubectl(append([]string{"--kubeconfig=/dev/null", "--server=https://" + nodeAddress, "--certificate-authority=" + c.pki.path("ca.crt"), "--token=" + token}, args...)...)
		return err
	}
	c.waitFor(t, "the policy is in force", func() error {
		if as(bound, "label", "node", nodeName, "a=label") == nil {
			c.mustKubectl(t, "label", "node", nodeName, "a-")
			return errors.New("the agent may label its node")
		}
		return nil
	})
	for what, try := range map[string]struct {
		token string
		args  []string
		says  string
	}{
		"another taint":      {bound, []string{"taint", "nodes", nodeName, "pilotfish.test/other-"}, "may only remove the taint cni.istio.io/not-ready"},
		"a new taint":        {bound, []string{"taint", "nodes", nodeName, "new=:NoExecute"}, "may only remove the taint cni.istio.io/not-ready"},
		"a label":            {bound, []string{"label", "node", nodeName, "new=label"}, "may only change the taints of a node"},
		"a cordon":           {bound, []string{"patch", "node", nodeName, "-p", `{"spec":{"unschedulable":true}}`}, "may only change the taints of a node"},
		"the plugin's token": {free, []string{"taint", "nodes", nodeName, taint + "-"}, "the node that it runs on"},
	} {
		if err := as(try.token, try.args...); err == nil || !strings.Contains(err.Error(), try.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := as(bound, "taint", "nodes", nodeName, taint+"-"); err != nil {
		t.Error(err)
	}
}
