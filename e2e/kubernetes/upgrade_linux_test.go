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

// attempt returns a pod of the mesh that sends one request to an address immediately after its start. It has no proxy:
// if the request is captured, it is refused, and the exit code is 1.
func attempt(name, address string) object {
	p := injected(pod(name, "/podapp", "get", "http://"+address+":8080/"), idleSidecar())
	p["spec"].(object)["restartPolicy"] = "Never"
	p["metadata"].(object)["labels"] = object{"attempt": "true"}
	return p
}

// startAttempts creates such pods one after the other until stop is called, which returns their number.
func (c *cluster) startAttempts(t *testing.T, address string) (stop func() int) {
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

// findEscaped waits until the requests of all attempts have ended, and returns the pods whose request was answered.
func (c *cluster) findEscaped(t *testing.T, number int) (escaped []string) {
	t.Helper()
	var refused []string
	c.waitFor(t, "all pods have asked", func() error {
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
		if ended := len(escaped) + len(refused); ended != number {
			return fmt.Errorf("%d of %d: %s", ended, number, out)
		}
		return nil
	})
	for _, name := range refused { // the requested server accepts every connection: the refusal is from the proxy's port
		if log := c.mustKubectl(t, "logs", name, "-c", "app"); !strings.Contains(log, "connection refused") {
			t.Errorf("pod %s was not refused: %s", name, log)
		}
	}
	return escaped
}

func TestNoPodStartsUnprotectedWhileTheAgentIsUpgraded(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	_, db := c.createRunning(t, pod("db"))
	stop := c.startAttempts(t, db)
	c.deploy(t, "image: pilotfish/install-cni", "image: pilotfish/install-cni:next")
	c.deploy(t)
	number := stop()
	if escaped := c.findEscaped(t, number); len(escaped) > 0 {
		t.Errorf("%d of %d pods went past their proxy: %v", len(escaped), number, escaped)
	}
	t.Logf("%d pods", number)
}

// TestPodsStartWhileNoAgentRuns: without the agent's pod, the plugin queries the API server itself, although everything
// bound to that pod is deleted.
func TestPodsStartWhileNoAgentRuns(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	agent := strings.TrimSpace(c.mustKubectl(t, "get", "pods", "-n", agentNamespace, "-l", "app=pilotfish-cni-node", "-o", "jsonpath={.items[0].metadata.name}"))
	bound := strings.TrimSpace(c.mustKubectl(t, "create", "token", "pilotfish-cni", "-n", agentNamespace, "--bound-object-kind=Pod", "--bound-object-name="+agent))
	c.withoutAgent(t)
	c.waitFor(t, "what was bound to the agent's pod is worthless", func() error {
		if _, err := c.kubectl("--kubeconfig=/dev/null", "--server=https://"+nodeAddress, "--certificate-authority="+c.pki.path("ca.crt"), "--token="+bound,
			"get", "pods", "-A"); err == nil || !strings.Contains(err.Error(), "Unauthorized") && !strings.Contains(err.Error(), "logged in") {
			return fmt.Errorf("the token is taken: %v", err)
		}
		return nil
	})
	if list := c.node.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the plugin is gone: %s", list)
	}
	_, db := c.createRunning(t, pod("db"))
	name := c.create(t, attempt("attempt", db))
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
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
	c.waitFor(t, "the agent's pod is gone", func() error {
		out, err := c.kubectl("get", "pods", "-n", agentNamespace, "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
}
