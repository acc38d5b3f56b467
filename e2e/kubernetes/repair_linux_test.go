package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPodThatStartedBeforeThePluginIsRepaired(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.remove(t)
	p := pod("early")
	early, earlyAddress := c.createRunning(t, injected(p, c.envoySidecar(t, p)))
	db, dbAddress := c.createRunning(t, pod("db"))
	if answer := c.get(early, dbAddress); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Fatalf("before: %s", answer)
	}
	c.deploy(t)
	c.waitAnswer(t, "out of the pod", early, dbAddress, "200 through=[outbound] host=db")
	c.waitAnswer(t, "into the pod", db, earlyAddress, "200 through=[inbound] host=early")
	c.waitEvent(t, early, "Normal RedirectionRepaired the pod's traffic bypassed its sidecar, because redirection was missing or incorrect; it is redirected now")
	if out := c.mustKubectl(t, "get", "pod", early, "-o", "jsonpath={.status.containerStatuses[*].restartCount}"); out != "0 0" {
		t.Errorf("restarts of its containers: %s", out)
	}
}

func TestPodThatStartedBeforeThePluginIsDeletedForAnother(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.remove(t)
	template := injected(pod("early"), idleSidecar())
	delete(template, "apiVersion")
	delete(template, "kind")
	set, err := json.Marshal(object{
		"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": object{"name": "early", "namespace": "default"},
		"spec": object{"replicas": 1, "selector": object{"matchLabels": object{"app": "early"}}, "template": template},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, string(set))
	t.Cleanup(func() { c.mustKubectl(t, "delete", "replicaset", "early", "--cascade=foreground", "--timeout=100s") })
	one := c.onePod(t, "app=early", "")
	_, db := c.createRunning(t, pod("db"))
	if answer := c.get(one, db); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Fatalf("before: %s", answer)
	}
	c.deploy(t, `{name: REPAIR_REPAIR_PODS, value: "true"}`, `{name: REPAIR_DELETE_PODS, value: "true"}`,
		"resources: [pods]\n  verbs: [get, list, watch]", "resources: [pods]\n  verbs: [get, list, watch, delete]")
	two := c.onePod(t, "app=early", one)
	if answer := c.get(two, db); !strings.Contains(answer, "connection refused") {
		t.Errorf("the pod that follows is not captured: %s", answer)
	}
}

// onePod waits for the one running pod of a label which is another than one.
func (c *cluster) onePod(t *testing.T, label, than string) (name string) {
	t.Helper()
	c.waitFor(t, "one pod runs", func() error {
		out, err := c.kubectl("get", "pods", "-l", label, "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {end}`)
		if err != nil {
			return err
		}
		if words := strings.Fields(out); len(words) == 2 && words[1] == "True" && words[0] != than {
			name = words[0]
			return nil
		}
		return fmt.Errorf("pods: %q", out)
	})
	return name
}

func TestPodThatStartedBeforeThePluginIsLabelled(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.remove(t)
	early, _ := c.createRunning(t, injected(pod("early"), idleSidecar()))
	c.deploy(t, `{name: REPAIR_REPAIR_PODS, value: "true"}`, `{name: REPAIR_LABEL_PODS, value: "true"}`,
		"resources: [pods]\n  verbs: [get, list, watch]", "resources: [pods]\n  verbs: [get, list, watch, patch]")
	c.waitFor(t, "the label", func() error {
		return c.checkField("pod/"+early, `{.metadata.labels.cni\.istio\.io/uninitialized}`, "true")
	})
	_, db := c.createRunning(t, pod("db"))
	if answer := c.get(early, db); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Errorf("it is only to be labelled: %s", answer)
	}
}

// TestAgentUsesTheRightsThatItHasAndNoOthers compares the manifest's roles with the requests that the API server
// logged.
func TestAgentUsesTheRightsThatItHasAndNoOthers(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	since := c.auditCount(t)
	c.remove(t)
	early, _ := c.createRunning(t, injected(pod("early"), idleSidecar())) // so that the agent has something to report in events
	c.deploy(t)
	c.waitEvent(t, early, "RedirectionRepaired")
	c.withoutAgent(t) // so that the plugin requests a pod, and the agent its daemon set
	c.createRunning(t, pod("db"))
	var used map[string]bool
	want := []string{"get pods", "list pods", "watch pods", "get daemonsets", "create serviceaccounts/token", "create events"}
	c.waitFor(t, "each right is used", func() error {
		var refused []string
		used, refused = c.audit(t, since)
		if len(refused) > 0 {
			t.Fatalf("refused: %v", refused)
		}
		for _, right := range want {
			if !used[right] {
				return errors.New("not used: " + right)
			}
		}
		return nil
	})
	for _, right := range want {
		delete(used, right)
	}
	if len(used) > 0 {
		t.Errorf("used, too: %v", used)
	}
}
