package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	daemonSet = "/apis/apps/v1/namespaces/istio-system/daemonsets/pilotfish-cni-node"
	podUID    = "0f0f1111-2222-3333-4444-555566667777"
	// primaryPlugin is the program of a fake primary CNI plugin. It creates no network, because the test has created it.
	primaryPlugin = `#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","interfaces":[],"ips":[{"address":"10.77.0.9/24"}]}'
exit 0
`
)

// host is a fake node on which the node agent runs, with a fake API server.
type host struct {
	t    *testing.T
	root string
	api  *kubetest.Server
	env  map[string]string
	log  *testenv.Buffer
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, root: t.TempDir(), api: kubetest.New(t), log: &testenv.Buffer{}}
	for _, dir := range []string{"bin", "net.d", "run", "sa", "results", "image", "proc"} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pilotfish-cni", "pilotfish-cni-tombstone"} {
		if err := os.Link(testenv.Bin(t, name), h.path("image/"+name)); err != nil {
			if err := os.Symlink(testenv.Bin(t, name), h.path("image/"+name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	testenv.Program(t, h.path("bin/primary"), []byte(primaryPlugin))
	h.write("net.d/10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"primary"}]}`)
	h.write("sa/token", kubetest.Token)
	h.write("sa/ca.crt", string(h.api.CA()))
	h.api.SetObject(daemonSet, `{"metadata":{"name":"pilotfish-cni-node"}}`)
	address := strings.TrimPrefix(h.api.URL, "https://")
	server, port, _ := strings.Cut(address, ":")
	h.env = map[string]string{
		"KUBERNETES_SERVICE_HOST": server, "KUBERNETES_SERVICE_PORT": port, "SERVICE_ACCOUNT_DIR": h.path("sa"),
		"MOUNTED_CNI_NET_DIR": h.path("net.d"), "MOUNTED_CNI_BIN_DIR": h.path("bin"), "MOUNTED_CNI_RESULTS_DIR": h.path("results"),
		"CNI_BIN_SOURCE_DIR": h.path("image"), "CNI_AGENT_RUN_DIR": h.path("run"), "POD_NAMESPACE": "istio-system",
		"NODE_NAME": "n1", "READINESS_ADDRESS": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)),
		"MONITORING_PORT": strconv.Itoa(testenv.FreePort(t)), "LOG_LEVEL": "debug", "CHECK_INTERVAL": "1s",
		"HOST_NETWORK_NAMESPACE": "/proc/thread-self/ns/net", "PROC_DIR": "/proc",
	}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

func (h *host) write(name, content string) {
	h.t.Helper()
	if err := os.WriteFile(h.path(name), []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) lookup(name string) (string, bool) {
	value, set := h.env[name]
	return value, set
}

// start runs the agent until stop is called.
func (h *host) start() (stop func() error) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	root := command("pilotfish-cni-install", h.lookup)
	root.SetArgs(nil)
	root.SetErr(h.log)
	go func() { ended <- root.ExecuteContext(ctx) }()
	var err error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			err = <-ended
		}
		return err
	}
	h.t.Cleanup(func() {
		if err := stop(); err != nil {
			h.t.Error(err)
		}
		if h.t.Failed() {
			h.t.Log(h.log)
		}
	})
	testenv.Eventually(h.t, "readiness", func() error {
		select {
		case err := <-ended:
			ended <- err
			h.t.Fatalf("the agent exited: %v\n%s", err, h.log)
		default:
		}
		code, text := h.get("http://" + h.env["READINESS_ADDRESS"] + "/readyz")
		if code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	return stop
}

func (h *host) get(url string) (int, string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// metric waits for a line of the metrics page.
func (h *host) metric(line string) {
	h.t.Helper()
	testenv.Eventually(h.t, line, func() error {
		_, text := h.get("http://127.0.0.1:" + h.env["MONITORING_PORT"] + "/metrics")
		if !strings.Contains(text, line+"\n") {
			return errors.New("not there")
		}
		return nil
	})
}

// network returns the node's current CNI configuration as a container runtime reads it.
func (h *host) network() (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	h.t.Helper()
	list, err := libcni.ConfListFromFile(h.path("net.d/10-net.conflist"))
	if err != nil {
		h.t.Fatal(err)
	}
	return libcni.NewCNIConfigWithCacheDir([]string{h.path("bin")}, h.root, nil), list
}

// sandbox adds a pod of the mesh to the node, with a network as the primary plugin would create it.
func (h *host) sandbox(name, uid string) (*testns.Namespace, *libcni.RuntimeConf) {
	h.t.Helper()
	ns := testns.New(h.t)
	ns.Links(h.t, func(l *netlink.Handle) error {
		lo, err := l.LinkByName("lo")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.77.0.9/24")
		if err != nil {
			return err
		}
		return l.AddrAdd(lo, address)
	})
	h.api.Put(agentapi.Pod{
		Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: uid, Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:     agentapi.PodSpec{NodeName: "n1", Containers: []agentapi.Container{{Name: "app"}, {Name: "istio-proxy"}}},
	})
	return ns, &libcni.RuntimeConf{
		ContainerID: "sandbox-of-" + name, NetNS: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.Handle)), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", uid}},
	}
}

// captured reports whether the redirection rules exist in a namespace.
func captured(t *testing.T, ns *testns.Namespace) bool {
	t.Helper()
	backend, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := backend.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got.Rules != nil
}

func TestInstalledPluginRedirectsPod(t *testing.T) {
	h := newHost(t)
	h.start()
	ns, pod := h.sandbox("web", podUID)
	network, list := h.network()
	if _, err := network.AddNetworkList(t.Context(), list, pod); err != nil {
		t.Fatal(err)
	}
	if !captured(t, ns) {
		t.Error("the pod's traffic bypasses its proxy")
	}
	h.metric(`pilotfish_cni_plugin_commands_total{command="ADD",result="captured"} 1`)
	h.metric(`pilotfish_cni_plugin_command_duration_seconds_count{command="ADD",result="captured"} 1`)
	h.metric(`istio_cni_install_ready 1`)
	h.metric(`istio_cni_installs_total{result="SUCCESS"} 1`)
	if err := network.CheckNetworkList(t.Context(), list, pod); err != nil {
		t.Error("CHECK:", err)
	}
	if err := network.DelNetworkList(t.Context(), list, pod); err != nil {
		t.Error("DEL:", err)
	}
	h.metric(`pilotfish_cni_plugin_commands_total{command="DEL",result="removed"} 1`)
	testenv.Eventually(t, "the plugin's log", func() error {
		if !strings.Contains(h.log.String(), "component=cni-plugin") {
			return errors.New("nothing of it")
		}
		return nil
	})
	if strings.Contains(h.log.String(), kubetest.Token) {
		t.Error("the token is in the log")
	}
}

// An agent may use another identity for the API server, with more permissions than the plugin should have.
func TestPluginUsesServiceAccountInsteadOfAgentKubeconfig(t *testing.T) {
	h := newHost(t)
	h.api.LimitTokenLife(0)
	h.write("sa/token", "of-the-service-account")
	h.write("kubeconfig", fmt.Sprintf(`{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": "sa/ca.crt"}}], "users": [{"name": "u", "user": {"token": %q}}]}`, h.api.URL, kubetest.Token))
	h.env["KUBECONFIG"] = h.path("kubeconfig")
	h.start()
	text, err := os.ReadFile(h.path("run/istio-cni-kubeconfig"))
	if err != nil || !strings.Contains(string(text), "of-the-service-account") || strings.Contains(string(text), kubetest.Token) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestAgentIsReadyDuringSlowTokenRequest(t *testing.T) {
	h := newHost(t)
	release := h.api.DelayResponses(kubetest.TokenPath)
	defer release()
	h.start()
	kubeconfig := func() string {
		text, err := os.ReadFile(h.path("run/istio-cni-kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := kubeconfig(); !strings.Contains(text, kubetest.Token) {
		t.Errorf("the agent does not answer the plugin meanwhile: %s", text)
	}
	release()
	testenv.Eventually(t, "the plugin's own token", func() error {
		if !strings.Contains(kubeconfig(), "lasting-1") {
			return errors.New("not there")
		}
		return nil
	})
}

func TestPodUnknownToAPIServerDoesNotStart(t *testing.T) {
	h := newHost(t)
	h.start()
	_, pod := h.sandbox("web", podUID)
	h.api.Remove("shop", "web")
	network, list := h.network()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := network.AddNetworkList(ctx, list, pod); err == nil {
		t.Error("a pod that the API server does not know was started")
	}
}

func TestUpgradeKeepsPodsProtected(t *testing.T) {
	h := newHost(t)
	stop := h.start()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	network, list := h.network()
	if types := fmt.Sprint(list.Plugins[len(list.Plugins)-1].Network.Type); types != "pilotfish-cni" {
		t.Fatalf("the exit of the old agent removed the plugin: %s", types)
	}
	// Between two agents the plugin queries the API server. If that fails too, the pod waits.
	ns, pod := h.sandbox("web", podUID)
	if _, err := network.AddNetworkList(t.Context(), list, pod); err != nil || !captured(t, ns) {
		t.Errorf("between two agents: %v", err)
	}
	h.api.Break(http.StatusServiceUnavailable)
	other, waits := h.sandbox("other", "0f0f1111-2222-3333-4444-555566660000")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := network.AddNetworkList(ctx, list, waits); err == nil {
		t.Error("a pod was started although neither the agent nor the API server responds")
	}
	h.api.Break(0)
	h.start()
	if _, err := network.AddNetworkList(t.Context(), list, waits); err != nil || !captured(t, other) {
		t.Errorf("with the next agent: %v", err)
	}
}

func TestDaemonSetDeletionUninstallsPlugin(t *testing.T) {
	h := newHost(t)
	before := h.tree()
	stop := h.start()
	_, pod := h.sandbox("web", podUID)
	network, list := h.network()
	if _, err := network.AddNetworkList(t.Context(), list, pod); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the agent's look at its daemon set", func() error {
		if !strings.Contains(h.log.String(), "found this agent's DaemonSet") {
			return errors.New("not yet")
		}
		return nil
	})
	h.api.SetObject(daemonSet, "")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	_, now := h.network()
	if len(now.Plugins) != 1 {
		t.Error("the plugin is still in the configuration")
	}
	if _, err := os.Stat(h.path("bin/pilotfish-cni")); err != nil {
		t.Error("the tombstone, which deletes sandboxes that refer to the plugin, is missing:", err)
	}
	// The runtime deletes the sandbox with the configuration with which it was created.
	if err := network.DelNetworkList(t.Context(), list, pod); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(h.path("run/attachments")); err == nil {
		t.Error("the plugin's files about sandboxes were not removed")
	}
	_ = os.Remove(h.path("bin/pilotfish-cni")) // the tombstone reads the machine's sandboxes, and so does not remove itself in this test
	if after := h.tree(); after != before {
		t.Errorf("files after the uninstallation:\n%s\nfiles before the installation:\n%s", after, before)
	}
}

func TestMissingDaemonSetIsNotTreatedAsDeleted(t *testing.T) {
	h := newHost(t)
	h.env["DAEMONSET_NAME"] = "of-another-name"
	if err := h.start()(); err != nil {
		t.Fatal(err)
	}
	if _, list := h.network(); len(list.Plugins) != 2 {
		t.Error("the plugin was uninstalled although the DaemonSet's name is wrong")
	}
	if !strings.Contains(h.log.String(), "daemonset-name") {
		t.Error("the remedy is missing")
	}
}

func TestUnreachableAPIServerKeepsThePluginInstalled(t *testing.T) {
	h := newHost(t)
	stop := h.start()
	h.api.Break(http.StatusUnauthorized)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, list := h.network(); len(list.Plugins) != 2 {
		t.Error("the plugin was uninstalled although the API server did not respond")
	}
	if !strings.Contains(h.log.String(), "pilotfish-cni-install uninstall") {
		t.Error("the uninstall command is missing")
	}
	root := command("pilotfish-cni-install", h.lookup)
	root.SetArgs([]string{"uninstall"})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, list := h.network(); len(list.Plugins) != 1 {
		t.Error("the plugin is still installed")
	}
}

func TestPodStartedBeforePluginIsRepaired(t *testing.T) {
	h := newHost(t)
	ns, _ := h.sandbox("web", podUID)
	process := exec.Command("sleep", "600")
	ns.Start(t, process)
	testns.JoinPod(t, process.Process.Pid, podUID)
	p, _ := h.api.Pod("shop", "web")
	p.Status = agentapi.PodStatus{PodIP: "10.77.0.9", ContainerStatuses: []agentapi.ContainerStatus{{Name: "app", ContainerID: "containerd://1"}}}
	h.api.Put(p)
	h.start()
	testenv.Eventually(t, "the repair", func() error {
		if !captured(t, ns) {
			return errors.New("the pod's traffic bypasses its proxy")
		}
		return nil
	})
	h.metric(`istio_cni_repair_pods_repaired_total{result="success",type="repair"} 1`)
	h.metric(`pilotfish_cni_captured_pods 1`)
	h.metric(`pilotfish_cni_drifted_pods 0`)
}

// tree returns the names of all files of the host.
func (h *host) tree() string {
	h.t.Helper()
	var names []string
	err := filepath.WalkDir(h.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(path, h.path("run")) {
			names = append(names, strings.TrimPrefix(path, h.root))
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.Join(names, "\n")
}
