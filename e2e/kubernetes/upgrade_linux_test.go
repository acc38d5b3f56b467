package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// attempt is a pod of the mesh that asks for an address once, as its first deed, and has no proxy that would answer: if it
// is captured it is refused, and its exit code is 1.
func attempt(name, address string) object {
	p := injected(pod(name, "/podapp", "get", "http://"+address+":8080/"), idleSidecar())
	p["spec"].(object)["restartPolicy"] = "Never"
	p["metadata"].(object)["labels"] = object{"attempt": "true"}
	return p
}

// attempts makes such pods, one after the other without end, until stopped; it gives their number.
func (c *cluster) attempts(t *testing.T, address string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; n++ {
			text, _ := json.Marshal(attempt(fmt.Sprintf("attempt-%d", n), address))
			if _, err := c.kubectlWith(string(text), "create", "-f", "-"); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond): // as a machine of two processors bears
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_, _ = c.kubectl("delete", "pod", "-l", "attempt=true", "--timeout=110s", "--grace-period=1")
	})
	return func() int { cancel(); <-done; return n }
}

// answered waits until the pods of attempts have all asked, and says how many were answered.
func (c *cluster) answered(t *testing.T, number int) (escaped []string) {
	t.Helper()
	var refused []string
	c.within(t, "all pods have asked", func() error {
		out, err := c.kubectl("get", "pods", "-l", "attempt=true", "-o",
			`jsonpath={range .items[*]}{.metadata.name}={.status.containerStatuses[?(@.name=="app")].state.terminated.exitCode} {end}`)
		if err != nil {
			return err
		}
		escaped, refused = nil, nil
		for _, pod := range strings.Fields(out) {
			switch name, code, _ := strings.Cut(pod, "="); code {
			case "0":
				escaped = append(escaped, name)
			case "1":
				refused = append(refused, name)
			}
		}
		if asked := len(escaped) + len(refused); asked != number {
			return fmt.Errorf("%d of %d: %s", asked, number, out)
		}
		return nil
	})
	for _, name := range refused { // whoever listens there refuses nobody: it was the proxy's port
		if log := c.mustKubectl(t, "logs", name, "-c", "app"); !strings.Contains(log, "connection refused") {
			t.Errorf("pod %s was not refused: %s", name, log)
		}
	}
	return escaped
}

func TestNoPodStartsUnprotectedWhileTheAgentIsUpgraded(t *testing.T) {
	c := theCluster(t)
	c.deploy(t)
	_, db := c.running(t, pod("db"))
	stop := c.attempts(t, db)
	c.deploy(t, "image: pilotfish/cni", "image: pilotfish/cni:next")
	c.deploy(t)
	number := stop()
	if escaped := c.answered(t, number); len(escaped) > 0 {
		t.Errorf("%d of %d pods went past their proxy: %v", len(escaped), number, escaped)
	}
	t.Logf("%d pods", number)
}

// TestPodsStartWhileNoAgentRuns has the plugin ask the API server itself, when the agent's pod is gone and so is all that
// was bound to it.
func TestPodsStartWhileNoAgentRuns(t *testing.T) {
	c := theCluster(t)
	c.deploy(t)
	agent := strings.TrimSpace(c.mustKubectl(t, "get", "pods", "-n", agentNamespace, "-l", "app=pilotfish-cni-node", "-o", "jsonpath={.items[0].metadata.name}"))
	bound := strings.TrimSpace(c.mustKubectl(t, "create", "token", "pilotfish-cni", "-n", agentNamespace, "--bound-object-kind=Pod", "--bound-object-name="+agent))
	c.withoutAgent(t)
	c.within(t, "what was bound to the agent's pod is worthless", func() error {
		if _, err := c.kubectl("--kubeconfig=/dev/null", "--server=https://"+nodeAddress, "--certificate-authority="+c.pki.path("ca.crt"), "--token="+bound,
			"get", "pods", "-A"); err == nil || !strings.Contains(err.Error(), "Unauthorized") && !strings.Contains(err.Error(), "logged in") {
			return fmt.Errorf("the token is taken: %v", err)
		}
		return nil
	})
	if list := c.node.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the plugin is gone: %s", list)
	}
	_, db := c.running(t, pod("db"))
	name := c.create(t, attempt("attempt", db))
	if escaped := c.answered(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}

// withoutAgent has no node fit the daemon set, which stays, for the time of the test.
func (c *cluster) withoutAgent(t *testing.T) {
	t.Helper()
	fit := func(node string) {
		c.mustKubectl(t, "patch", "daemonset", "pilotfish-cni-node", "-n", agentNamespace, "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"none":`+node+`}}}}}`)
	}
	fit(`"such"`)
	t.Cleanup(func() { fit("null") })
	c.within(t, "the agent's pod is gone", func() error {
		out, err := c.kubectl("get", "pods", "-n", agentNamespace, "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
}
