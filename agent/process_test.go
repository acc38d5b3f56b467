package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
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

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// asAgent makes the test binary behave as the agent's own.
const asAgent = "PILOTFISH_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asClient); socket != "" {
		os.Exit(speakXDS(socket))
	}
	if os.Getenv(asAgent) == "" {
		waitSideBySide()
		os.Exit(m.Run())
	}
	os.Exit(Main())
}

// waitSideBySide has more tests run at a time than there are processors: most of them only wait for processes.
func waitSideBySide() {
	flag.Parse()
	if n := strconv.Itoa(3 * runtime.GOMAXPROCS(0)); flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", n)
	}
}

// patience is how long the tests wait for what must happen: long enough for the slowest machine, since only a broken promise
// takes it.
const patience = time.Minute

// setup is an agent to be run: its directory, its environment, and the control plane it knows of.
type setup struct {
	dir     string
	address string
	env     []string
	args    []string
	cp      *controlPlane
	stdin   io.Reader
	within  []string // a program that starts the agent, with its arguments

	binary string               // the agent's program; the test's own if empty
	attr   *syscall.SysProcAttr // how it is started
}

// newSetup lays out an agent's directory. The address is its own, so that tests can run at the same time.
func newSetup(t *testing.T, address string) *setup {
	t.Helper()
	s := &setup{dir: t.TempDir(), address: address, cp: newControlPlane(t, address)}
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

func (s *setup) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// program writes a script into the agent's directory, and gives its path.
func (s *setup) program(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	testenv.Program(t, path, []byte(text))
	return path
}

// running is an agent that was started.
type running struct {
	*setup
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

func (s *setup) start(t *testing.T) *running {
	t.Helper()
	r := s.prepare(t)
	r.run(t)
	return r
}

func (s *setup) prepare(t *testing.T) *running {
	t.Helper()
	r := &running{setup: s, t: t, out: &output{}, done: make(chan struct{})}
	r.cmd = s.command()
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = s.dir, s.env, s.stdin, r.out, r.out
	return r
}

func (r *running) run(t *testing.T) {
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

// command is how the agent is started: by itself, or within another program.
func (s *setup) command() *exec.Cmd {
	line := append(append([]string{}, s.within...), cmp.Or(s.binary, os.Args[0]))
	line = append(line, s.args...)
	c := exec.Command(line[0], line[1:]...)
	c.SysProcAttr = s.attr
	return c
}

// exit waits for the agent's end and gives its code. An end may take its time, and many of them a busy machine.
func (r *running) exit() int {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(2 * patience):
		r.t.Fatalf("the agent did not end")
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *running) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// eventually polls until the condition gives no error.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	err := condition()
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); err = condition() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: not after %v; last: %v", what, patience, err)
	}
}

// eventually polls as long as the agent lives.
func (r *running) eventually(what string, condition func() error) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
		select {
		case <-r.done:
			r.t.Fatalf("%s: the agent ended meanwhile, code %d; last: %v", what, r.cmd.ProcessState.ExitCode(), err)
		default:
		}
	}
	r.t.Fatalf("%s: not after %v; last: %v", what, patience, err)
}

func (r *running) http(method, path string) (int, string, error) {
	request, err := http.NewRequest(method, "http://"+r.address+":"+path, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// reasons are what readiness says of each part.
func (r *running) reasons() (ready bool, reasons map[string]string, err error) {
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

func (r *running) waitReady() {
	r.t.Helper()
	r.eventually("ready", func() error {
		ready, reasons, err := r.reasons()
		if err == nil && !ready {
			err = fmt.Errorf("not ready: %v", reasons)
		}
		return err
	})
}

var startedEnvoy = regexp.MustCompile(`msg="Envoy started" pid=(\d+)`)

// envoys are the processes that the agent said it started, in order.
func (r *running) envoys() []int {
	var pids []int
	for _, m := range startedEnvoy.FindAllStringSubmatch(r.out.String(), -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

func (r *running) envoy() int {
	r.t.Helper()
	var pid int
	r.eventually("Envoy started", func() error {
		pids := r.envoys()
		if len(pids) == 0 {
			return errors.New("no Envoy yet")
		}
		pid = pids[len(pids)-1]
		return nil
	})
	return pid
}

// nothingLeft checks that the agent's end took Envoy and its sockets with it.
func (r *running) nothingLeft() {
	r.t.Helper()
	for _, pid := range r.envoys() {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			r.t.Errorf("Envoy %d is still there (%v)", pid, err)
		}
	}
	kept := filepath.Join("etc/istio/proxy", lastGoodInDir) // which is to outlive the agent
	reported := strings.Contains(r.out.String(), "report of the end written")
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
