package kubernetes

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// join has a second node join the cluster, with taints, for the time of the test.
func (c *cluster) join(t *testing.T, at nodeConfig, taints string) *node {
	t.Helper()
	holder := exec.Command("/bin/sh", "-c", "ip link set lo up && sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && echo ready && exec sleep infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	net := c.start(t, "network of "+at.name, holder)
	c.waitFor(t, "the network of "+at.name, func() error {
		if !strings.Contains(net.output.String(), "ready") {
			return errors.New(net.output.String())
		}
		return nil
	})
	c.cable(t, c.net, "ip link add to-2 type veth peer name eth0 netns "+strconv.Itoa(net.cmd.Process.Pid)+" && ip link set to-2 master node0 up")
	c.cable(t, net, "ip addr add "+at.address+"/24 dev eth0 && ip addr add "+at.address6+"/64 dev eth0 nodad && ip link set eth0 up && "+
		"ip route add default via "+nodeAddress+" && ip route add default via "+nodeAddress6)
	c.cable(t, c.net, "ip route add "+at.pods+" via "+at.address+" && ip route add "+at.pods6+" via "+at.address6)
	n := c.startNode(t, at, net, taints)
	t.Cleanup(func() {
		_, _ = c.kubectl("delete", "node", at.name, "--timeout=100s")
		n.kill()
		net.kill() // and the cables with it
		c.nodes = slices.DeleteFunc(c.nodes, func(o *node) bool { return o == n })
		testenv.RemoveCgroups(n.cgroup, 20*time.Second)
	})
	return n
}

func (c *cluster) cable(t *testing.T, at *process, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := enterNamespaces(ctx, at, "/bin/sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// withNode assigns a pod to one node.
func withNode(p object, n nodeConfig) object {
	p["spec"].(object)["nodeSelector"] = object{"kubernetes.io/hostname": n.name}
	return p
}

// TestPodsOfTwoNodesMeetThroughTheirEnvoys adds a node that accepts no pods of the mesh until its agent is ready.
func TestPodsOfTwoNodesMeetThroughTheirEnvoys(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.allowUntaint(t)
	untaints := []string{"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}",
		"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}\n        - {name: NOT_READY_TAINT, value: " + taint + "}"}
	c.deploy(t, untaints...)
	n := c.join(t, second, `[{"key":"`+taint+`","effect":"NoSchedule"}]`)
	c.waitFor(t, "the node is ready and free", func() error {
		return errors.Join(c.checkField("node/"+n.name, `{.status.conditions[?(@.type=="Ready")].status}`, "True"), c.checkField("node/"+n.name, `{.spec.taints[*].key}`, ""))
	})
	c.deploy(t, untaints...) // on both nodes
	if list := n.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the taint went before the plugin was there: %s", list)
	}
	p, q := pod("web"), pod("far")
	web, webAddress := c.createRunning(t, withNode(injected(p, c.envoySidecar(t, p)), first))
	far, farAddress := c.createRunning(t, withNode(injected(q, c.envoySidecar(t, q)), second))
	c.waitAnswer(t, "from the first node to the second", web, farAddress, "200 through=[inbound outbound] host=far remote=127.0.0.6")
	c.waitAnswer(t, "from the second node to the first", far, webAddress, "200 through=[inbound outbound] host=web remote=127.0.0.6")
	if node := c.mustKubectl(t, "get", "pod", far, "-o", "jsonpath={.spec.nodeName}"); node != n.name {
		t.Errorf("the pod is on %s", node)
	}
}
