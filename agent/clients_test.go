package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// asClient makes the test binary run as an application that speaks xDS over a socket. It subscribes to listeners,
// prints the responses, and exits when its stream or its stdin ends.
const asClient = "PILOTFISH_TEST_AS_XDS_CLIENT"

// appUser is an application user that differs from the agent's.
const appUser = 65534

func speakXDS(socket string) int {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~127.0.0.1~app.books~books.svc.cluster.local"},
			TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener"})
	}
	for err == nil {
		var r *discoveryv3.DeltaDiscoveryResponse
		if r, err = stream.Recv(); err == nil {
			fmt.Println("got", r.GetTypeUrl())
		}
	}
	fmt.Println("ended:", err)
	return 1
}

// xdsApplication is a process that speaks xDS to the agent.
type xdsApplication struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func (r *agentProcess) application(uid uint32) *xdsApplication {
	r.t.Helper()
	program := filepath.Join(r.dir, "application") // where another user can execute it
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		r.t.Fatal(err)
	}
	testenv.Program(r.t, program+fmt.Sprint(uid), text)
	cmd := exec.Command(program + fmt.Sprint(uid))
	cmd.Env = []string{asClient + "=" + filepath.Join(r.dir, "etc/istio/proxy/XDS"), "GOCOVERDIR=" + r.t.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &xdsApplication{cmd: cmd, lines: bufio.NewScanner(out)}
}

// readLine returns the next line of its output.
func (a *xdsApplication) readLine() string {
	a.lines.Scan()
	return a.lines.Text()
}

const listenerGot = "got type.googleapis.com/envoy.config.listener.v3.Listener"

// makeReadable allows all users to access the agent's directory.
func makeReadable(t *testing.T, s *agentSetup) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	for dir := s.dir; dir != filepath.Dir(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o011 != 0o011 {
			_ = os.Chmod(dir, info.Mode().Perm()|0o011)
		}
	}
}

func TestProxylessApplicationsOfAnyUserGetConfiguration(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.2.1")
	makeReadable(t, s)
	s.env = append(s.env, "DISABLE_ENVOY=true")
	r := s.startReady(t)
	first, second := r.application(appUser), r.application(appUser-1)
	for name, app := range map[string]*xdsApplication{"first": first, "second": second} {
		if got := app.readLine(); got != listenerGot {
			t.Errorf("the %s application: %s", name, got)
		}
	}
	r.signal(syscall.SIGTERM)
	for name, app := range map[string]*xdsApplication{"first": first, "second": second} {
		if got := app.readLine(); !strings.HasPrefix(got, "ended: ") {
			t.Errorf("the %s application: %s, before the agent received a stop signal", name, got)
		}
	}
}

func TestApplicationNeedsPermissionForXDSSocket(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.2.2")
	makeReadable(t, s)
	s.env = append(s.env, fmt.Sprintf("XDS_SOCKET_USERS=%d", appUser))
	r := s.startReady(t)
	if got := r.application(appUser).readLine(); got != listenerGot {
		t.Errorf("the application: %s", got)
	}
	if got := r.application(appUser - 1).readLine(); !strings.HasPrefix(got, "ended: ") {
		t.Errorf("an application of another user: %s", got)
	}
	out := r.out.String()
	if strings.Contains(out, "displaces") || strings.Count(out, "connected to the control plane") != 1 {
		t.Errorf("Envoy's stream was interrupted:\n%s", out)
	}
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); {
		if ready, reasons, err := r.readiness(); err != nil || !ready {
			t.Fatalf("not ready: %v, %v", reasons, err)
		}
	}
}

func TestOnlyEnvoyReachesXDSSocket(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.2.3")
	makeReadable(t, s)
	r := s.startReady(t)
	if got := r.application(appUser).readLine(); !strings.Contains(got, "permission denied") {
		t.Errorf("an application: %s", got)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "etc/istio/proxy/XDS")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Envoy is recognized even if ENVOY_PATH names a script that starts it.
func TestEnvoyStartedByScriptIsRecognized(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.2.4")
	s.env = append(s.env, "ENVOY_PATH="+s.program(t, "envoy", fmt.Sprintf("#!/bin/sh\n%s \"$@\"\n", strings.TrimPrefix(envoyPathVariable(s), "ENVOY_PATH="))))
	r := s.startReady(t)

	script := r.envoy()
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
	eventually(t, "the script's Envoy has exited too", func() error { // another process must reap the zombie
		if err := syscall.Kill(-script, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("a signal to its group gives %v", err)
		}
		return nil
	})
}

func envoyPathVariable(s *agentSetup) string {
	for _, pair := range s.env {
		if strings.HasPrefix(pair, "ENVOY_PATH=") {
			return pair
		}
	}
	return ""
}
