//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	scopeNet = "127.193.9."
	// scopeUsed is the number of services that the workload uses.
	scopeUsed = 10
)

// scope compares the memory of two Envoys of sidecars: one has all clusters of a mesh, and one has only the clusters that it
// uses.
func (b *bench) scope(ctx context.Context) error {
	services, err := sizes(b.services)
	if err != nil {
		return fmt.Errorf("-services: %w", err)
	}
	for _, n := range services {
		if err := b.scopeWith(ctx, n); err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
	}
	return nil
}

func (b *bench) scopeWith(ctx context.Context, services int) error {
	dir, err := os.MkdirTemp(b.dir, "scope")
	if err != nil {
		return err
	}
	mesh := &planeMesh{dir: filepath.Join(dir, "config"), services: services}
	if err := errors.Join(mesh.write(), mesh.onLoopback()); err != nil {
		return err
	}
	stop, err := start(dir, os.Environ(), filepath.Join(b.bin, "pilotfish"), "control-plane", "--config-dir", mesh.dir,
		"--state-dir", filepath.Join(dir, "state"), "--address", scopeNet+"1")
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	if err := awaitReady("http://" + scopeNet + "1:15014/ready"); err != nil {
		return err
	}
	fmt.Printf("%d services of %d endpoints, the Envoy of a sidecar\n", services, planeEndpoints)
	for _, scope := range []string{"all", "automatic", "all", "automatic"} {
		if err := b.weighScoped(ctx, dir, scope, services); err != nil {
			return fmt.Errorf("scope %s: %w", scope, err)
		}
	}
	return ctx.Err()
}

// onLoopback changes the addresses of all endpoints to loopback, so that requests do not leave the machine.
func (m *planeMesh) onLoopback() error {
	files, err := filepath.Glob(filepath.Join(m.dir, "service-*"))
	for _, file := range files {
		text, failed := os.ReadFile(file)
		if failed == nil {
			failed = os.WriteFile(file, bytes.ReplaceAll(text, []byte("{address: 10."), []byte("{address: 127.")), 0o644)
		}
		err = errors.Join(err, failed)
	}
	return err
}

func (b *bench) weighScoped(ctx context.Context, dir, scope string, services int) error {
	began := time.Now()
	agent, stop, err := b.scopedAgent(ctx, dir, scope)
	if err != nil {
		return err
	}
	defer stop()
	ready, err := awaitOK(ctx, "http://"+scopeNet+"2:15020/healthz/ready")
	if err != nil {
		return err
	}
	envoy, err := childOf(agent)
	if err != nil {
		return err
	}
	cpu, err := cpuTime(envoy)
	if err != nil {
		return err
	}
	fmt.Printf("  scope %s: ready after %.0f ms, CPU of Envoy %.0f ms\n", scope, ms(ready.Sub(began)), ms(cpu))
	if err := weigh("ready", envoy); err != nil {
		return err
	}
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for i := range scopeUsed {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+scopeNet+"2:15080/", http.NoBody)
		if err != nil {
			return err
		}
		r.Host = serviceHost(services - 1 - i) // there is no listener for this host, so a 503 is expected
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
	}
	if !backoff.Sleep(ctx, 3*time.Second) {
		return ctx.Err()
	}
	if err := weigh(fmt.Sprintf("%d services used", scopeUsed), envoy); err != nil {
		return err
	}
	if !backoff.Sleep(ctx, settleTime) { // the agent releases the memory of large messages 10 s after the last one
		return ctx.Err()
	}
	return weigh("its agent 13 s later", agent)
}

// scopedAgent starts an agent with its Envoy, which has the specified scope. pid is the agent's process ID.
func (b *bench) scopedAgent(ctx context.Context, plane, scope string) (pid int, stop func(), err error) {
	dir, err := os.MkdirTemp(b.dir, "s")
	if err != nil {
		return 0, nil, err
	}
	state := filepath.Join(plane, "state")
	token, err := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish"), "token", "--state-dir", state, "--namespace", "ns1", "--service-account", "caller").Output()
	if err != nil {
		return 0, nil, fmt.Errorf("issuing a token: %w", err)
	}
	root := []byte(nil)
	_ = filepath.Walk(state, func(path string, _ os.FileInfo, _ error) error {
		if filepath.Base(path) == "root-cert.pem" {
			root, err = os.ReadFile(path)
		}
		return nil
	})
	for name, text := range map[string][]byte{
		"var/run/secrets/istio/root-cert.pem": root, "var/run/secrets/tokens/istio-token": bytes.TrimSpace(token),
	} {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600))
	}
	if err != nil {
		return 0, nil, err
	}
	own, at := scopeNet+"2", scopeNet+"1:15012"
	agent := exec.Command(filepath.Join(b.bin, "pilotfish-agent"), "proxy", "sidecar", "--concurrency", "2")
	agent.Dir = dir
	agent.Env = []string{"HOME=" + dir, "INSTANCE_IP=" + own, "PROXY_BIND_ADDRESS=" + own, "POD_NAME=caller", "POD_NAMESPACE=ns1",
		"SERVICE_ACCOUNT=caller", "CA_ADDR=" + at, "TRUST_DOMAIN=cluster.local", "TERMINATION_GRACE_PERIOD=2s", "MINIMUM_DRAIN_DURATION=0s",
		"ENVOY_PATH=" + b.envoy, "ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_APP_ADDRESS=" + scopeNet + "3",
		"ISTIO_META_PILOTFISH_SCOPE=" + scope, fmt.Sprintf("PROXY_CONFIG={discoveryAddress: %q}", at)}
	output := &strings.Builder{}
	agent.Stdout, agent.Stderr = output, output
	if err := agent.Start(); err != nil {
		return 0, nil, err
	}
	return agent.Process.Pid, func() { _ = agent.Process.Signal(os.Interrupt); _ = agent.Wait() }, nil
}
