//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	settleTime  = 10 * time.Second
	idleTime    = time.Minute
	probedTime  = time.Minute
	probePeriod = 250 * time.Millisecond
)

// idle measures the memory of an idle agent, the wake-ups of the agent and its Envoy, and the memory of the agent after
// frequent probes.
func (b *bench) idle(ctx context.Context) error {
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	agent, err := b.launchAgent(ctx)
	if err != nil {
		return err
	}
	defer agent.quit()
	pid := agent.cmd.Process.Pid
	envoy, err := childOf(pid)
	if err != nil {
		return err
	}
	fmt.Printf("resident memory of the agent (VmRSS), and its wake-ups\n")
	if err := weigh("when ready", pid); err != nil {
		return err
	}
	if !backoff.Sleep(ctx, settleTime) {
		return ctx.Err()
	}
	if err := weigh("10 s later", pid); err != nil {
		return err
	}
	seen, err := watch(ctx, idleTime, pid, envoy)
	if err != nil {
		return err
	}
	for i, name := range []string{"the agent", "its Envoy"} {
		fmt.Printf("  %s, idle for %v: ran in %d intervals of 0.1 s, %d thread wake-ups\n", name, idleTime, seen[i].moments, seen[i].switches)
	}
	if err := weigh("after being idle for a minute", pid); err != nil {
		return err
	}
	for end := time.Now().Add(probedTime); time.Now().Before(end) && backoff.Sleep(ctx, probePeriod); {
		if _, err := awaitOK(ctx, "http://"+proxyAddress+":15020/healthz/ready"); err != nil {
			return err
		}
	}
	return weigh("after a minute with 4 probes a second", pid)
}

// shutdown measures the time from SIGTERM to the exit, for a sidecar without clients and for Envoy alone.
func (b *bench) shutdown(ctx context.Context) error {
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	var took []time.Duration
	for range b.rounds {
		agent, err := b.launchAgent(ctx)
		if err != nil {
			return err
		}
		signaled := time.Now()
		if err := agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := agent.cmd.Wait(); err != nil {
			return fmt.Errorf("stopping the agent: %w", err)
		}
		took = append(took, time.Since(signaled))
	}
	middle := median(took)
	fmt.Printf("time from SIGTERM to the exit of an idle sidecar, %d measurements\n", len(took))
	fmt.Printf("  median %d ms, slowest %d ms\n", middle.Milliseconds(), took[len(took)-1].Milliseconds())
	return nil
}

func weigh(when string, pid int) error {
	m, err := memoryOf(pid)
	if err == nil {
		fmt.Printf("  %-47s %6.1f MiB, of which anonymous %5.1f\n", when, m.all, m.own)
	}
	return err
}

// memory is the resident memory of a process in MiB. own is the part without the pages of the program file, which
// processes share.
type memory struct{ all, own float64 }

func memoryOf(pid int) (memory, error) {
	file := fmt.Sprintf("/proc/%d/status", pid)
	all, err := statusField(file, "VmRSS:")
	if err != nil {
		return memory{}, err
	}
	own, err := statusField(file, "RssAnon:")
	return memory{all / 1024, own / 1024}, err
}

// activity counts how often a process ran.
type activity struct {
	moments  int // number of intervals of 0.1 s in which it ran
	switches int // number of wake-ups of its threads
}

// watch samples the processes for the duration during, and returns the activity of each.
func watch(ctx context.Context, during time.Duration, pids ...int) ([]activity, error) {
	seen, last := make([]activity, len(pids)), make([]int, len(pids))
	for end, first := time.Now().Add(during), true; time.Now().Before(end); first = false {
		for i, pid := range pids {
			n, err := switches(pid)
			if err != nil {
				return nil, err
			}
			if !first && n > last[i] {
				seen[i].moments++
				seen[i].switches += n - last[i]
			}
			last[i] = n
		}
		if !backoff.Sleep(ctx, 100*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
	return seen, nil
}

// switches returns the number of voluntary context switches of all threads of a process. Each of them is one wake-up.
func switches(pid int) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("the threads of process %d cannot be listed in /proc", pid)
	}
	sum := 0
	for _, file := range files {
		n, err := statusField(file, "voluntary_ctxt_switches:")
		if err != nil {
			return 0, err
		}
		sum += int(n)
	}
	return sum, nil
}

// statusField reads a number from a status file in /proc.
func statusField(file, name string) (float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// childOf returns the PID of the only child process of an agent, which is its Envoy.
func childOf(pid int) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			return strconv.Atoi(fields[0])
		}
	}
	return 0, fmt.Errorf("process %d has no child", pid)
}
