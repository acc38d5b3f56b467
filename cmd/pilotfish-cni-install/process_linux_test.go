package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// process runs the agent as a child process, which the test can kill.
func (h *host) process() *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command(testenv.Bin(h.t, "pilotfish-cni-install"))
	for name, value := range h.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stderr = h.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if h.t.Failed() {
			h.t.Log(h.log)
		}
	})
	return cmd
}

func (h *host) ready() {
	h.t.Helper()
	testenv.Eventually(h.t, "readiness", func() error {
		if code, text := h.get("http://" + h.env["READINESS_ADDRESS"] + "/readyz"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
}

// The test starts pods continuously while it kills agents, replaces them by agents with another version of the plugin, and
// stops them. A pod may have to wait, but must not start without redirection.
func TestNoPodStartsUnprotectedDuringAgentRestarts(t *testing.T) {
	h := newHost(t)
	agent := h.process()
	h.ready()
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	var started, waited atomic.Int32
	for worker := range 2 {
		starting.Go(func() { h.startPods(ctx, worker, &started, &waited) })
	}
	for round, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		before := started.Load()
		h.waitForPods(&started, before+3)
		h.nextVersion(round)
		_ = agent.Process.Signal(signal)
		_ = agent.Wait()
		agent = h.process()
		h.ready()
	}
	h.waitForPods(&started, started.Load()+3)
	cancel()
	starting.Wait()
	t.Logf("%d pods started, %d had to wait; the agent has %s resident", started.Load(), waited.Load(), resident(agent.Process.Pid))
}

// resident returns the resident memory of a process.
func resident(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if size, found := strings.CutPrefix(line, "VmRSS:"); found {
			return strings.TrimSpace(size)
		}
	}
	return "?"
}

func (h *host) waitForPods(started *atomic.Int32, want int32) {
	h.t.Helper()
	testenv.Eventually(h.t, "pods start", func() error {
		if n := started.Load(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
}

// nextVersion replaces the image's plugin by another one with the same behaviour.
func (h *host) nextVersion(round int) {
	h.t.Helper()
	text, err := os.ReadFile(testenv.Bin(h.t, "pilotfish-cni"))
	if err != nil {
		h.t.Fatal(err)
	}
	next := h.path(fmt.Sprintf("image/next-%d", round))
	testenv.Program(h.t, next, append(text, byte(round)))
	if err := os.Rename(next, h.path("image/pilotfish-cni")); err != nil {
		h.t.Fatal(err)
	}
}

// startPods starts pods repeatedly, as a container runtime does, until the context ends.
func (h *host) startPods(ctx context.Context, worker int, started, waited *atomic.Int32) {
	for n := 0; ctx.Err() == nil; n++ {
		ns, pod := h.sandbox(fmt.Sprintf("web-%d-%d", worker, n), fmt.Sprintf("0f0f%04d-2222-3333-4444-%012d", worker, n))
		network, list := h.network()
		if _, err := network.AddNetworkList(ctx, list, pod); err != nil {
			waited.Add(1)
			continue
		}
		if !captured(h.t, ns) {
			h.t.Errorf("a pod started without redirection, with the CNI configuration %v", filepath.Base(list.Name))
		}
		started.Add(1)
		_ = network.DelNetworkList(ctx, list, pod)
	}
}
