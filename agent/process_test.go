package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// asAgent makes the test binary run the agent.
const asAgent = "PILOTFISH_TEST_AS_AGENT"

// RunMain is the main function of the agent's binary. An external test file sets it, because package command imports this
// package.
var RunMain func() int

func TestMain(m *testing.M) {
	if socket := os.Getenv(asClient); socket != "" {
		os.Exit(speakXDS(socket))
	}
	if os.Getenv(asAgent) == "" {
		waitSideBySide()
		os.Exit(m.Run())
	}
	os.Exit(RunMain())
}

// waitSideBySide raises the number of parallel tests above the number of processors, because most tests only wait for
// processes.
func waitSideBySide() {
	flag.Parse()
	if n := strconv.Itoa(3 * runtime.GOMAXPROCS(0)); flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", n)
	}
}

// testTimeout is the timeout of tests. It is generous because only failing tests wait this long.
const testTimeout = time.Minute

// agentSetup describes an agent to start: its directory, environment and control plane.
type agentSetup struct {
	dir     string
	address string
	env     []string
	args    []string
	cp      *controlPlane
	stdin   io.Reader
	within  []string // program that starts the agent, with arguments

	adminSocket string // of Envoy's admin interface; if empty, port 15000

	binary string               // the agent's binary; if empty, the test binary
	attr   *syscall.SysProcAttr // for the start
}

// newSetup creates an agent's directory. Each test uses its own address, so that tests can run in parallel.
func newSetup(t *testing.T, address string) *agentSetup {
	t.Helper()
	s := &agentSetup{dir: t.TempDir(), address: address, cp: newControlPlane(t, address)}
	s.write(t, "var/run/secrets/istio/root-cert.pem", string(s.cp.rootPEM))
	s.write(t, "var/run/secrets/tokens/istio-token", testToken)
	s.env = []string{
		asAgent + "=1", "HOME=" + os.Getenv("HOME"), "GOCOVERDIR=" + t.TempDir(),
		"ENVOY_PATH=" + testenv.Envoy(t), "PROXY_BIND_ADDRESS=" + address, "INSTANCE_IP=" + address,
		"POD_NAME=shop-1", "POD_NAMESPACE=books", "SERVICE_ACCOUNT=shop", "ECC_SIGNATURE_ALGORITHM=ECDSA",
		"PROXY_CONFIG=" + fmt.Sprintf(`{discoveryAddress: "%s", concurrency: 1, terminationDrainDuration: 1s}`, s.cp.address),
	}
	s.args = []string{"proxy", "sidecar"}
	return s
}

func (s *agentSetup) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// program writes a script into the agent's directory, and returns its path.
func (s *agentSetup) program(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	testenv.Program(t, path, []byte(text))
	return path
}

// agentProcess is a started agent.
type agentProcess struct {
	*agentSetup
	t    *testing.T
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startReady starts the control plane and the agent, and waits until the agent is ready.
func (s *agentSetup) startReady(t *testing.T) *agentProcess {
	t.Helper()
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	return r
}

func (s *agentSetup) start(t *testing.T) *agentProcess {
	t.Helper()
	r := s.prepare(t)
	r.run(t)
	return r
}

func (s *agentSetup) prepare(t *testing.T) *agentProcess {
	t.Helper()
	r := &agentProcess{agentSetup: s, t: t, out: &output{}, done: make(chan struct{})}
	r.cmd = s.command()
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = s.dir, s.env, s.stdin, r.out, r.out
	return r
}

func (r *agentProcess) run(t *testing.T) {
	t.Helper()
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.cmd.Wait(); close(r.done) }()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
		if t.Failed() {
			t.Logf("the agent's output:\n%s", r.out)
		}
	})
}

// command returns the command that starts the agent, possibly within another program.
func (s *agentSetup) command() *exec.Cmd {
	line := append(append([]string{}, s.within...), cmp.Or(s.binary, os.Args[0]))
	line = append(line, s.args...)
	c := exec.Command(line[0], line[1:]...)
	c.SysProcAttr = s.attr
	return c
}

// waitExit waits for the agent's exit and returns its code. On a busy machine this may last long.
func (r *agentProcess) waitExit() int {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(2 * testTimeout):
		r.t.Fatalf("the agent did not exit")
	}
	return r.cmd.ProcessState.ExitCode()
}

// expectExit waits until the agent exits, and compares its exit code.
func (r *agentProcess) expectExit(want int) {
	r.t.Helper()
	if code := r.waitExit(); code != want {
		r.t.Errorf("exit code %d, want %d:\n%s", code, want, r.out.String())
	}
}

// post sends a POST request, which must succeed.
func (r *agentProcess) post(path string) {
	r.t.Helper()
	if code, body, err := r.http("POST", path); err != nil || code != 200 {
		r.t.Fatalf("POST %s: %d %s %v", path, code, body, err)
	}
}

// killProcess sends a signal to another process of the test.
func killProcess(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

func (r *agentProcess) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// eventually polls until the condition returns nil.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	err := condition()
	for deadline := time.Now().Add(testTimeout); err != nil && time.Now().Before(deadline); err = condition() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: not after %v; last: %v", what, testTimeout, err)
	}
}

// eventually polls until condition returns nil. It fails if the agent exits.
func (r *agentProcess) eventually(what string, condition func() error) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
		select {
		case <-r.done:
			r.t.Fatalf("%s: the agent ended meanwhile, code %d; last: %v", what, r.cmd.ProcessState.ExitCode(), err)
		default:
		}
	}
	r.t.Fatalf("%s: not after %v; last: %v", what, testTimeout, err)
}

func (r *agentProcess) http(method, path string) (int, string, error) {
	if page, ok := strings.CutPrefix(path, "15000/"); ok && r.adminSocket != "" {
		return exchange(method, "http://"+dial.SocketHost(r.adminSocket)+"/"+page)
	}
	return r.tcp(method, path)
}

func (r *agentProcess) tcp(method, path string) (int, string, error) {
	return exchange(method, "http://"+r.address+":"+path)
}

// exchange sends a request and returns status and body of the response.
func exchange(method, url string) (int, string, error) {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial.LocalhostDialer(&net.Dialer{})}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// readiness returns the readiness reasons by component.
func (r *agentProcess) readiness() (ready bool, reasons map[string]string, err error) {
	_, body, err := r.http("GET", "15020/healthz/ready?format=json")
	if err != nil {
		return false, nil, err
	}
	var report struct {
		Ready   bool
		Reasons []struct {
			Part, Reason string
			Ready        bool
		}
	}
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		return false, nil, fmt.Errorf("%w: %s", err, body)
	}
	reasons = map[string]string{}
	for _, p := range report.Reasons {
		reasons[p.Part] = p.Reason
	}
	return report.Ready, reasons, nil
}

func (r *agentProcess) waitReady() {
	r.t.Helper()
	r.eventually("ready", func() error {
		ready, reasons, err := r.readiness()
		if err == nil && !ready {
			err = fmt.Errorf("not ready: %v", reasons)
		}
		return err
	})
}

var startedEnvoy = regexp.MustCompile(`\tEnvoy started\tpid=(\d+)`)

// startedEnvoys returns the PIDs that the agent has logged at Envoy's starts, in order.
func (r *agentProcess) startedEnvoys() []int {
	var pids []int
	for _, m := range startedEnvoy.FindAllStringSubmatch(r.out.String(), -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

func (r *agentProcess) envoy() int {
	r.t.Helper()
	var pid int
	r.eventually("Envoy started", func() error {
		pids := r.startedEnvoys()
		if len(pids) == 0 {
			return errors.New("no Envoy yet")
		}
		pid = pids[len(pids)-1]
		return nil
	})
	return pid
}

// checkNothingLeft checks that no Envoy, socket or temporary file is left after the agent's exit.
func (r *agentProcess) checkNothingLeft() {
	r.t.Helper()
	for _, pid := range r.startedEnvoys() {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			r.t.Errorf("Envoy %d still runs (%v)", pid, err)
		}
	}
	kept := "etc/istio/proxy/last-good" // outlives the agent
	reported := strings.Contains(r.out.String(), "wrote a crash report of Envoy")
	var files []string
	_ = filepath.WalkDir(r.dir, func(path string, d os.DirEntry, _ error) error {
		if d != nil && !d.IsDir() && !strings.Contains(path, kept) && !(reported && strings.Contains(path, "/"+reportDir+"/")) {
			files = append(files, strings.TrimPrefix(path, r.dir+"/"))
		}
		return nil
	})
	want := "etc/istio/proxy/envoy-rev.json etc/istio/proxy/grpc-bootstrap.json var/run/secrets/istio/root-cert.pem var/run/secrets/tokens/istio-token"
	if got := strings.Join(files, " "); got != want {
		r.t.Errorf("files left behind: %s; want only %s", got, want)
	}
}
