package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// crashAt is an environment variable with a number of steps of ADD, before which the plugin kills itself.
const crashAt = "PILOTFISH_TEST_CRASH_AT"

// podTimeoutEnv is an environment variable with Plugin.PodTimeout.
const podTimeoutEnv = "PILOTFISH_TEST_PATIENCE"

// The main thread must not enter a sandbox, because /proc/PID/ns/net refers to the main thread's network namespace.
func init() {
	if os.Getenv("CNI_COMMAND") == "" {
		runtime.LockOSThread()
	}
}

// TestMain runs a CNI plugin instead of the tests if CNI_COMMAND is set. The program's name selects the plugin.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") == "" {
		os.Exit(m.Run())
	}
	switch filepath.Base(os.Args[0]) {
	case "primary":
		fmt.Println(primaryResult(os.Getenv("PRIMARY_VERSION")))
		os.Exit(0)
	default:
		p := newPlugin(time.Now())
		p.PodTimeout, _ = time.ParseDuration(os.Getenv(podTimeoutEnv))
		steps := 0
		p.Step = func(string) {
			if steps++; strconv.Itoa(steps) == os.Getenv(crashAt) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		os.Exit(p.main())
	}
}

// primaryResult returns the result of a primary plugin, with a field that is not in the CNI specification.
func primaryResult(version string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","address":"10.1.2.3/24","interface":0}],"dns":{}}`, version)
}

// testNode contains the directories and the node agent with which a test runs the plugin.
type testNode struct {
	t            testing.TB
	dir          string
	bin          string
	agent        *fakeAgent
	extra        map[string]any // additional keys of the plugin's configuration
	agentTimeout string
}

func newTestNode(t testing.TB) *testNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf-cni") // a short path, because the length of a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &testNode{t: t, dir: dir, bin: filepath.Join(dir, "bin"), extra: map[string]any{}}
	if err := os.Mkdir(h.bin, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pilotfish-cni", "primary"} {
		if err := os.Symlink(self, filepath.Join(h.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// withAgent starts a fake node agent that serves the pods.
func (h *testNode) withAgent(pods ...*agentapi.Pod) *testNode {
	h.agent = startAgent(h.t, h.dir, pods...)
	return h
}

// config returns the plugin's entry in the CNI configuration.
func (h *testNode) config(version string) map[string]any {
	c := map[string]any{"type": "pilotfish-cni", "cni_agent_run_dir": h.dir, "plugin_log_level": "debug"}
	for key, value := range h.extra {
		c[key] = value
	}
	if version != "" {
		c["cniVersion"], c["name"] = version, "pods"
	}
	return c
}

// list returns a plugin list with the primary plugin and pilotfish's plugin.
func (h *testNode) list(version string) *libcni.NetworkConfigList {
	h.t.Helper()
	text := toJSON(h.t, map[string]any{"cniVersion": version, "name": "pods",
		"plugins": []any{map[string]any{"type": "primary"}, h.config("")}})
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

func (h *testNode) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{h.bin}, filepath.Join(h.dir, "cache"), nil)
}

// netnsPath returns a path of the namespace that is valid in other processes.
func netnsPath(ns *testns.Namespace) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.Handle))
}

func runtimeConf(p *agentapi.Pod, ns *testns.Namespace) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: "c-" + p.Metadata.Name, NetNS: netnsPath(ns), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Metadata.Namespace}, {"K8S_POD_NAME", p.Metadata.Name}, {"K8S_POD_UID", p.Metadata.UID}}}
}

// call runs the plugin directly, in the same way as a runtime.
func (h *testNode) call(command string, p *agentapi.Pod, netns string, config []byte, env ...string) (answer cniAnswer) {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(h.bin, "pilotfish-cni"))
	cmd.Env = append(env, podTimeoutEnv+"="+h.agentTimeout, "CNI_COMMAND="+command, "CNI_CONTAINERID=c-"+p.Metadata.Name, "CNI_NETNS="+netns, "CNI_IFNAME=eth0",
		"CNI_PATH="+h.bin, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s",
			p.Metadata.Namespace, p.Metadata.Name, p.Metadata.UID))
	cmd.Stdin = bytes.NewReader(config)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	answer.err = cmd.Run()
	answer.out, answer.log = strings.TrimSpace(out.String()), errOut.String()
	if answer.err != nil {
		_ = json.Unmarshal(out.Bytes(), &answer)
	}
	return answer
}

// cniAnswer is the output of a plugin: a result or an error.
type cniAnswer struct {
	CNIVersion, Msg, Details string
	Code                     uint
	out, log                 string
	err                      error
}

func toJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fakeAgent is a node agent with some pods. It records the log and results that it receives.
type fakeAgent struct {
	mu       sync.Mutex
	pods     map[string]*agentapi.Pod
	results  []agentapi.Result
	log      []agentapi.LogEntry
	requests int
	down     string // error in all responses; "" for none
}

func startAgent(t testing.TB, dir string, pods ...*agentapi.Pod) *fakeAgent {
	t.Helper()
	a := &fakeAgent{pods: map[string]*agentapi.Pod{}}
	for _, p := range pods {
		a.pods[p.Metadata.Namespace+"/"+p.Metadata.Name] = p
	}
	l, err := net.Listen("unix", filepath.Join(dir, agentapi.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	server.Start()
	t.Cleanup(server.Close)
	return a
}

func (a *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refuse := func(code int, text string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(agentapi.Refusal{Error: text})
	}
	switch r.URL.Path {
	case agentapi.PodPath:
		a.requests++
		p := a.pods[r.FormValue("namespace")+"/"+r.FormValue("name")]
		switch {
		case a.down != "":
			refuse(http.StatusServiceUnavailable, a.down)
		case p == nil:
			refuse(http.StatusNotFound, "there is no such pod")
		default:
			_ = json.NewEncoder(w).Encode(p)
		}
	case agentapi.LogPath:
		var entries []agentapi.LogEntry
		_ = json.NewDecoder(r.Body).Decode(&entries)
		a.log = append(a.log, entries...)
	case agentapi.ResultPath:
		var result agentapi.Result
		_ = json.NewDecoder(r.Body).Decode(&result)
		a.results = append(a.results, result)
	case agentapi.StatusPath:
		if a.down != "" {
			refuse(http.StatusServiceUnavailable, a.down)
		}
	}
}

// last returns the last result that the agent received.
func (a *fakeAgent) last() agentapi.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.results) == 0 {
		return agentapi.Result{}
	}
	return a.results[len(a.results)-1]
}

// meshPod returns a pod with a sidecar.
func meshPod(name string) *agentapi.Pod {
	return &agentapi.Pod{
		Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: "uid-" + name,
			Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec: agentapi.PodSpec{Containers: []agentapi.Container{{Name: "app"}, {Name: "istio-proxy"}}},
	}
}

// plainPod returns a pod without a sidecar.
func plainPod(name string) *agentapi.Pod {
	p := meshPod(name)
	p.Metadata.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1]
	return p
}
