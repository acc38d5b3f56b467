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
func (c *cluster) join(t *testing.T, at place, taints string) *node {
	t.Helper()
	hold := exec.Command("/bin/sh", "-c", "ip link set lo up && sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && echo ready && exec sleep infinity")
	hold.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	net := c.start(t, "network of "+at.name, hold)
	c.within(t, "the network of "+at.name, func() error {
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
	if out, err := within(ctx, at, "/bin/sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// on has a pod go to one node.
func on(p object, n place) object {
	p["spec"].(object)["nodeSelector"] = object{"kubernetes.io/hostname": n.name}
	return p
}

// TestPodsOfTwoNodesMeetThroughTheirEnvoys has a node join that pods of the mesh are kept from until its agent is ready.
func TestPodsOfTwoNodesMeetThroughTheirEnvoys(t *testing.T) {
	c := theCluster(t)
	c.deploy(t)
	c.untaint(t)
	untaints := []string{"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}",
		"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}\n        - {name: NOT_READY_TAINT, value: " + taint + "}"}
	c.deploy(t, untaints...)
	n := c.join(t, second, `[{"key":"`+taint+`","effect":"NoSchedule"}]`)
	c.within(t, "the node is ready and free", func() error {
		return errors.Join(c.is("node/"+n.name, `{.status.conditions[?(@.type=="Ready")].status}`, "True"), c.is("node/"+n.name, `{.spec.taints[*].key}`, ""))
	})
	c.deploy(t, untaints...) // on both nodes
	if list := n.conflist(t); !strings.Contains(list, "pilotfish-cni") {
		t.Errorf("the taint went before the plugin was there: %s", list)
	}
	p, q := pod("web"), pod("far")
	web, webAddress := c.running(t, on(injected(p, c.envoySidecar(t, p)), first))
	far, farAddress := c.running(t, on(injected(q, c.envoySidecar(t, q)), second))
	c.answers(t, "from the first node to the second", web, farAddress, "200 through=[inbound outbound] host=far remote=127.0.0.6")
	c.answers(t, "from the second node to the first", far, webAddress, "200 through=[inbound outbound] host=web remote=127.0.0.6")
	if node := c.mustKubectl(t, "get", "pod", far, "-o", "jsonpath={.spec.nodeName}"); node != n.name {
		t.Errorf("the pod is on %s", node)
	}
}
