package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// TestImagesRunFromARegistry pushes the project's images to a registry, and starts them as Istio's injector and chart do.
func TestImagesRunFromARegistry(t *testing.T) {
	n := newNode(t, alone)
	network := n.network(t)
	outside, onNode := startRegistry(t, network)
	archives := pushImages(t, outside)
	t.Run("proxyv2", func(t *testing.T) {
		runSidecarImage(t, n, network, n.pull(t, onNode+"/pilotfish/proxyv2:"+imageVersion))
	})
	t.Run("install-cni", func(t *testing.T) {
		pulled := n.pull(t, onNode+"/pilotfish/install-cni:"+imageVersion)
		n.importArchive(t, filepath.Join(archives, "pilotfish-install-cni-"+imageVersion+".oci.tar"))
		imported, err := n.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: "docker.io/pilotfish/install-cni:" + imageVersion}})
		if err != nil || imported.Image.GetId() != pulled {
			t.Errorf("the archive has the image %s (%v), the registry %s", imported.GetImage().GetId(), err, pulled)
		}
		runNodeAgentImage(t, n, network, pulled)
	})
}

// redirectionArgs are those of the init containers in Istio's injection template.
var redirectionArgs = []string{"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*",
	"-d", "15090,15021,15020", "--log_output_level=default:info"}

// runSidecarImage starts the init containers, the sidecar and an application of one pod.
func runSidecarImage(t *testing.T, n *node, network *testns.Namespace, image string) {
	web, db := n.mustRun(t, plainPod("web")), n.mustRun(t, plainPod("db"))
	webApp, dbApp := web.serve(t, 8080), db.serve(t, 8080)
	db.waitFor(t, dbApp, web.address(0, 8080))

	validation := sidecarConfig("istio-validation", image, append(redirectionArgs, "--run-validation", "--skip-rule-apply")...)
	if code, log := web.waitExit(t, web.startConfig(t, validation)); code != 126 {
		t.Errorf("validation without redirection: exit code %d, want 126\n%s", code, log)
	}
	init := sidecarConfig("istio-init", image, redirectionArgs...)
	init.Linux.SecurityContext = &cri.LinuxContainerSecurityContext{RunAsUser: &cri.Int64Value{}, RunAsGroup: &cri.Int64Value{},
		Capabilities: &cri.Capability{AddCapabilities: []string{"NET_ADMIN", "NET_RAW"}, DropCapabilities: []string{"ALL"}}}
	if code, log := web.waitExit(t, web.startConfig(t, init)); code != 0 {
		t.Fatalf("installing the redirection: exit code %d\n%s", code, log)
	}
	if code, log := web.waitExit(t, web.startConfig(t, sidecarConfig("command", image, "no-such-command"))); code != 2 {
		t.Errorf("an unknown command: exit code %d, want 2\n%s", code, log)
	}
	sidecar := sidecarConfig("istio-proxy", image, "proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--proxyLogLevel=warning",
		"--proxyComponentLogLevel=misc:error", "--log_output_level=default:info")
	web.addSidecarFiles(t, sidecar, n.startControlPlane(t, network))
	id := web.startConfig(t, sidecar)
	testenv.Eventually(t, "the sidecar is ready", func() error {
		answer, err := web.exec(t.Context(), webApp, "/podapp", "get", "http://127.0.0.1:15021/healthz/ready")
		if err == nil && strings.HasPrefix(answer, "200") {
			return nil
		}
		_, log := n.status(t, id)
		return fmt.Errorf("%s (%w)\n%s", answer, err, log)
	})
	if answer, want := db.get(t, dbApp, web.address(0, 8080)), "200 through=[] host=web remote=127.0.0.6"; !strings.HasPrefix(answer, want) {
		t.Errorf("into the pod: %s, want %s", answer, want)
	}
	web.checkSidecar(t, id)
	if _, err := n.runtime.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 60}); err != nil {
		t.Error(err)
	}
	if code, log := web.waitExit(t, id); code != 0 {
		t.Errorf("the sidecar's exit code is %d\n%s", code, log)
	}
}

// sidecarConfig returns a container of the sidecar's image with a read-only root file system, and with the image's user,
// entrypoint and environment.
func sidecarConfig(name, image string, args ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: image}, Args: args,
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			ReadonlyRootfs: true, NoNewPrivs: true, Capabilities: &cri.Capability{DropCapabilities: []string{"ALL"}}}},
	}
}

// controlPlane is a control plane on the node: its state directory and its address.
type controlPlane struct{ state, address string }

// startControlPlane starts a control plane on the node's address in the pods' network.
func (n *node) startControlPlane(t *testing.T, network *testns.Namespace) controlPlane {
	t.Helper()
	p := controlPlane{filepath.Join(n.dir, "state"), "10.88.0.1"}
	config := filepath.Join(n.dir, "documents")
	if err := os.Mkdir(config, 0o700); err != nil {
		t.Fatal(err)
	}
	network.Start(t, exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--config-dir", config, "--state-dir", p.state, "--address", p.address))
	testenv.Eventually(t, "the control plane's root certificate", func() error {
		_, err := os.Stat(p.rootFile())
		return err
	})
	return p
}

func (p controlPlane) rootFile() string { return filepath.Join(p.state, "authority", "root-cert.pem") }

// addSidecarFiles adds the environment and the volumes of an injected sidecar.
func (s *sandbox) addSidecarFiles(t *testing.T, c *cri.ContainerConfig, p controlPlane) {
	t.Helper()
	volume := func(name string, files map[string]string) string {
		dir := filepath.Join(s.node.dir, "volumes", name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	root, err := os.ReadFile(p.rootFile())
	if err != nil {
		t.Fatal(err)
	}
	token, err := exec.Command(testenv.Bin(t, "pilotfish"), "token", "--state-dir", p.state, "--namespace", "shop", "--service-account", "web").Output()
	if err != nil {
		t.Fatal(err)
	}
	hosts := volume("hosts", map[string]string{"hosts": "127.0.0.1 localhost\n" + p.address + " istiod.istio-system.svc\n"})
	for path, dir := range map[string]string{
		"/var/run/secrets/workload-spiffe-uds":         volume("workload-socket", nil),
		"/var/run/secrets/credential-uds":              volume("credential-socket", nil),
		"/var/run/secrets/workload-spiffe-credentials": volume("workload-certs", nil),
		"/etc/istio/proxy":                             volume("envoy", nil),
		"/var/lib/istio/data":                          volume("data", nil),
		"/etc/istio/pod":                               volume("pod", map[string]string{"labels": "app=\"web\"\n", "annotations": ""}),
		"/var/run/secrets/istio":                       volume("roots", map[string]string{"root-cert.pem": string(root)}),
		"/var/run/secrets/tokens":                      volume("tokens", map[string]string{"istio-token": string(token)}),
		"/etc/hosts":                                   filepath.Join(hosts, "hosts"),
	} {
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: path, HostPath: dir, Readonly: path == "/etc/istio/pod" || path == "/etc/hosts"})
	}
	for name, value := range map[string]string{
		"PILOT_CERT_PROVIDER": "istiod", "CA_ADDR": "istiod.istio-system.svc:15012", "POD_NAME": "web", "POD_NAMESPACE": "shop", "SERVICE_ACCOUNT": "web",
		"INSTANCE_IP": s.addresses[0].String(), "HOST_IP": p.address, "PROXY_CONFIG": "{}", "ISTIO_META_CLUSTER_ID": "Kubernetes", "TRUST_DOMAIN": "cluster.local",
		"ISTIO_META_NODE_NAME": "n1", "ISTIO_META_WORKLOAD_NAME": "web", "ISTIO_META_MESH_ID": "cluster.local", "ISTIO_META_INTERCEPTION_MODE": "REDIRECT",
		"ISTIO_META_APP_CONTAINERS": "web", "ISTIO_META_POD_PORTS": "[\n]",
	} {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: name, Value: value})
	}
}

// checkSidecar checks the sidecar's user, its Envoy, and that it can write nothing but its volumes.
func (s *sandbox) checkSidecar(t *testing.T, id string) {
	t.Helper()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pilot-agent", "request", "GET", "server_info"}, testenv.EnvoyVersion + "/Clean/RELEASE"},
		{[]string{"pilotfish-agent", "version"}, "commit"},
		{[]string{"envoy", "--version"}, testenv.EnvoyVersion},
	} {
		if out, err := s.exec(t.Context(), id, c.args...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s", strings.Join(c.args, " "), err, out)
		}
	}
	pid, _ := s.node.status(t, id)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/status", s.node.process.Pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t1337\t1337\t1337\t1337\n", "Gid:\t1337\t1337\t1337\t1337\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the process lacks %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/mounts", s.node.process.Pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); words[1] == "/" && !strings.HasPrefix(words[3], "ro") {
			t.Errorf("the root file system is writable: %s", line)
		}
	}
}

// status returns the process ID of a container, as the runtime sees it, and the container's log.
func (n *node) status(t *testing.T, id string) (pid int, log string) {
	t.Helper()
	answer, err := n.runtime.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil {
		t.Fatalf("%v: %s", err, answer.Info["info"])
	}
	text, _ := os.ReadFile(answer.Status.LogPath)
	return info.PID, string(text)
}

// runNodeAgentImage starts the node agent by the name, and with the arguments, of Istio's chart.
func runNodeAgentImage(t *testing.T, n *node, network *testns.Namespace, image string) {
	var api *kubetest.Server
	if err := network.Run(func() error { api = kubetest.New(t); return nil }); err != nil {
		t.Fatal(err)
	}
	address, port, _ := strings.Cut(strings.TrimPrefix(api.URL, "https://"), ":")
	account := filepath.Join(n.dir, "account")
	if err := errors.Join(os.Mkdir(account, 0o700), os.WriteFile(filepath.Join(account, "token"), []byte(kubetest.Token), 0o600),
		os.WriteFile(filepath.Join(account, "ca.crt"), api.CA(), 0o600), os.Remove(filepath.Join(n.dir, "cni/bin/pilotfish-cni"))); err != nil {
		t.Fatal(err)
	}
	host := &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_NODE}}
	config := n.sandboxConfig(plainPod("istio-cni-node-x"))
	config.Hostname, config.Linux.SecurityContext = "", host // runc cannot set the name of the node
	pod, err := n.runConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "install-cni"}, Image: &cri.ImageSpec{Image: image}, Command: []string{"install-cni"}, Args: []string{"--log_output_level=info"},
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{ReadonlyRootfs: true, NamespaceOptions: host.NamespaceOptions,
			Capabilities: &cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE", "SETUID", "SETGID"}}}},
	}
	for path, dir := range map[string]string{"/host/opt/cni/bin": "cni/bin", "/host/etc/cni/net.d": "cni/net.d", "/var/run/istio-cni": "run",
		"/var/run/secrets/kubernetes.io/serviceaccount": "account"} {
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: path, HostPath: filepath.Join(n.dir, dir)})
	}
	for name, value := range map[string]string{"KUBERNETES_SERVICE_HOST": address, "KUBERNETES_SERVICE_PORT": port, "POD_NAMESPACE": "pilotfish-system", "NODE_NAME": "n1",
		"CHAINED_CNI_PLUGIN": "true", "REPAIR_ENABLED": "false"} {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: name, Value: value})
	}
	id := pod.startConfig(t, c)
	testenv.Eventually(t, "the plugin is installed", func() error {
		list, err := os.ReadFile(filepath.Join(n.dir, "cni/net.d/10-pods.conflist"))
		if err == nil && !strings.Contains(string(list), "pilotfish-cni") {
			_, log := n.status(t, id)
			err = fmt.Errorf("%s\n%s", list, log)
		}
		return err
	})
	installed, err := os.ReadFile(filepath.Join(n.dir, "cni/bin/pilotfish-cni"))
	if want, _ := os.ReadFile(testenv.Bin(t, "pilotfish-cni")); err != nil || string(installed) != string(want) {
		t.Errorf("the installed plugin is not that of the image: %v", err)
	}
	if _, err := n.runtime.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Error(err)
	}
	if code, log := pod.waitExit(t, id); code != 0 {
		t.Errorf("the node agent's exit code is %d\n%s", code, log)
	}
}
