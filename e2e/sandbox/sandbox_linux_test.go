package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// chained is a network with the bridge plugin and our plugin after it.
const chained = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"pods","isGateway":true,
 "ipam":{"type":"host-local","dataDir":"DIR/ipam","ranges":[[{"subnet":"10.88.0.0/16"}],[{"subnet":"fd88::/64"}]]}},
 {"type":"pilotfish-cni","cni_agent_run_dir":"DIR/run","log_file":"DIR/log/cni.log"}]}`

// get sends a request from within a pod, and returns the response or the error text.
func (s *sandbox) get(t *testing.T, container, address string) string {
	t.Helper()
	answer, err := s.exec(t.Context(), container, "/podapp", "get", "http://"+address+"/")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

func (s *sandbox) address(i, port int) string {
	return net.JoinHostPort(s.addresses[i].String(), fmt.Sprint(port))
}

// serve starts a server in the pod, on a port of all addresses, and waits until it responds.
func (s *sandbox) serve(t *testing.T, port int) (id string) {
	t.Helper()
	id = s.start(t, container{name: fmt.Sprintf("app%d", port), args: []string{"/podapp", "serve", fmt.Sprintf(":%d", port)}, user: 1000})
	s.waitFor(t, id, fmt.Sprintf("127.0.0.1:%d", port))
	return id
}

// waitFor waits until a server responds at the address.
func (s *sandbox) waitFor(t *testing.T, container, address string) {
	t.Helper()
	testenv.Eventually(t, "an answer of "+address, func() error {
		if answer := s.get(t, container, address); !strings.HasPrefix(answer, "200") {
			return errors.New(answer)
		}
		return nil
	})
}

func TestRealPodTrafficPassesRealEnvoy(t *testing.T) {
	n := newNode(t, chained)
	agent := n.startAgent(t)
	agent.knows(meshPod("web", "traffic.sidecar.istio.io/excludeOutboundPorts", "9090", "traffic.sidecar.istio.io/excludeInboundPorts", "9090"),
		plainPod("db"))
	web, db := n.mustRun(t, meshPod("web")), n.mustRun(t, plainPod("db"))
	web.startEnvoy(t, redirected)
	webApp, dbApp := web.serve(t, 8080), db.serve(t, 8080)
	web.serve(t, 9090)
	db.serve(t, 9090)
	db.waitFor(t, dbApp, web.address(0, 8080))
	for _, c := range []struct {
		name, answer, want string
	}{
		{"out of the pod", web.get(t, webApp, db.address(0, 8080)), "200 through=[outbound] host=db remote=" + web.addresses[0].String()},
		{"into the pod", db.get(t, dbApp, web.address(0, 8080)), "200 through=[inbound] host=web remote=127.0.0.6"},
		{"to the pod's own address", web.get(t, webApp, web.address(0, 8080)), "200 through=[] host=web"},
		{"to the pod's own loopback", web.get(t, webApp, "127.0.0.1:8080"), "200 through=[] host=web remote=127.0.0.1"},
		{"out, to an excluded port", web.get(t, webApp, db.address(0, 9090)), "200 through=[] host=db remote=" + web.addresses[0].String()},
		{"in, to an excluded port", db.get(t, dbApp, web.address(0, 9090)), "200 through=[] host=web remote=" + db.addresses[0].String()},
		{"within a pod that is not captured", db.get(t, dbApp, db.address(0, 8080)), "200 through=[] host=db"},
	} {
		if !strings.HasPrefix(c.answer, c.want) {
			t.Errorf("%s: %s, want %s", c.name, c.answer, c.want)
		}
	}
	for _, s := range []*sandbox{web, db} {
		if err := s.remove(t.Context()); err != nil {
			t.Errorf("the end of a pod: %v", err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(n.dir, "ipam/pods/10.88.*")); len(left) != 0 {
		t.Errorf("addresses are left: %v", left)
	}
}

func TestPodBehindTransparentProxySeesClientAddresses(t *testing.T) {
	n := newNode(t, chained)
	pod := meshPod("web", "sidecar.istio.io/interceptionMode", "TPROXY")
	pod.Spec.Containers[1].SecurityContext = agentapi.SecurityContext{RunAsUser: new(int64(0)), RunAsGroup: new(int64(1337))}
	n.startAgent(t).knows(pod, plainPod("db"))
	web, db := n.mustRun(t, pod), n.mustRun(t, plainPod("db"))
	web.startEnvoy(t, transparent)
	webApp, dbApp := web.serve(t, 8080), db.serve(t, 8080)
	db.waitFor(t, dbApp, web.address(0, 8080))
	if got, want := db.get(t, dbApp, web.address(0, 8080)), "200 through=[inbound] host=web remote="+db.addresses[0].String(); !strings.HasPrefix(got, want) {
		t.Errorf("into the pod: %s, want %s", got, want)
	}
	if got, want := web.get(t, webApp, db.address(0, 8080)), "200 through=[outbound] host=db"; !strings.HasPrefix(got, want) {
		t.Errorf("out of the pod: %s, want %s", got, want)
	}
}

func TestDualStackPodIsCapturedInBothFamilies(t *testing.T) {
	n := newNode(t, chained)
	pod := meshPod("web")
	pod.Spec.Containers[1].Env = []agentapi.EnvVar{{Name: "ISTIO_DUAL_STACK", Value: "true"}}
	n.startAgent(t).knows(pod, plainPod("db"))
	web, db := n.mustRun(t, pod), n.mustRun(t, plainPod("db"))
	web.startEnvoy(t, dualStack)
	webApp, dbApp := web.serve(t, 8080), db.serve(t, 8080)
	db.waitFor(t, dbApp, web.address(0, 8080))
	for i, from := range []string{"127.0.0.6", "[::6]"} {
		if got, want := db.get(t, dbApp, web.address(i, 8080)), "200 through=[inbound] host=web remote="+from; !strings.HasPrefix(got, want) {
			t.Errorf("into %s: %s, want %s", web.addresses[i], got, want)
		}
		if got, want := web.get(t, webApp, db.address(i, 8080)), "200 through=[outbound] host=db"; !strings.HasPrefix(got, want) {
			t.Errorf("out to %s: %s, want %s", db.addresses[i], got, want)
		}
	}
}

func TestUnprotectablePodFailsWithReason(t *testing.T) {
	n := newNode(t, chained)
	if _, err := n.run(t.Context(), meshPod("early")); err == nil ||
		!strings.Contains(err.Error(), "cannot determine whether pod shop/early has a sidecar") || !strings.Contains(err.Error(), "Remedy: check that the node agent runs") {
		t.Errorf("without a node agent: %v", err)
	}
	agent := n.startAgent(t)
	agent.knows(meshPod("bad", "traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.1"))
	if _, err := n.run(t.Context(), meshPod("bad")); err == nil || !strings.Contains(err.Error(), `"10.0.0.1" is not a CIDR`) {
		t.Errorf("with a bad annotation: %v", err)
	}
	if last := agent.results; len(last) == 0 || last[0].Outcome != "failed" {
		t.Errorf("the agent was told %+v", last)
	}
	if ready := n.sandboxes(t.Context()); ready != 0 {
		t.Errorf("%d sandboxes are ready", ready)
	}
	agent.knows(meshPod("bad"))
	if _, err := n.run(t.Context(), meshPod("bad")); err != nil {
		t.Errorf("once it is mended: %v", err)
	}
}

// sandboxes returns the number of sandboxes that are ready.
func (n *node) sandboxes(ctx context.Context) int {
	list, err := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}})
	if err != nil {
		return -1
	}
	return len(list.Items)
}

func TestPodIsRemovedAlthoughPluginIsBroken(t *testing.T) {
	n := newNode(t, chained)
	n.startAgent(t).knows(meshPod("web"))
	web := n.mustRun(t, meshPod("web"))
	list := filepath.Join(n.dir, "cni/net.d/10-pods.conflist")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte(strings.Replace(string(text), `"log_file"`, `"ipv6":"nonsense","log_file"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := web.remove(t.Context()); err != nil {
		t.Errorf("the end of the pod: %v", err)
	}
}
