// Package consultest runs a real Consul for the tests of a package.
package consultest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Consul is a server of Consul with one node. Its state is on disk, so it survives a restart.
type Consul struct {
	t      testing.TB
	binary string
	file   string // of the configuration
	// Address is the address of the HTTP API, without TLS.
	Address string
	token   string // of the requests of this type; empty for none
	stop    func()
}

// binary returns the path of the Consul that scripts/consul.sh has built into the cache.
var binary = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(testenv.Root(), "scripts", "consul.sh"), "--print").Output()
	if err != nil {
		return "", fmt.Errorf("scripts/consul.sh --print: %w", err)
	}
	path := strings.TrimSpace(string(out))
	_, err = os.Stat(path)
	return path, err
})

// Start starts a server at address, a loopback address that no other test uses, with Consul's default ports. settings
// are added to the configuration. token is the token of the requests of this type; empty for none. Consul is killed when the test ends. If it is not installed, the test is skipped.
func Start(t testing.TB, address, token string, settings map[string]any) *Consul {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Skipf("Consul is not in the cache (%v): `make consul` builds it", err)
	}
	dir := t.TempDir()
	config := map[string]any{
		"server": true, "bootstrap_expect": 1, "datacenter": "dc1", "node_name": "machine", "data_dir": filepath.Join(dir, "data"),
		"bind_addr": address, "client_addr": address, "ports": map[string]any{"dns": -1, "grpc": -1},
		"performance": map[string]any{"raft_multiplier": 1}, "disable_update_check": true, "connect": map[string]any{"enabled": false},
	}
	maps.Copy(config, settings)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &Consul{t: t, binary: path, file: filepath.Join(dir, "consul.json"), token: token, Address: "http://" + address + ":8500"}
	if err := os.WriteFile(c.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill() })
	c.Run()
	return c
}

// Run starts the process, and waits until it is the leader.
func (c *Consul) Run() {
	c.t.Helper()
	output := &testenv.Buffer{}
	cmd := exec.Command(c.binary, "agent", "-config-file", c.file)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error), make(chan struct{})
	// The kernel kills the child when the thread that started it exits, so the goroutine stays on that thread.
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-exited
		if c.t.Failed() {
			c.t.Logf("output of Consul:\n%s", output)
		}
	})
	testenv.Eventually(c.t, "Consul has a leader and its own service", func() error {
		select {
		case <-exited:
			c.t.Fatalf("Consul exited:\n%s", output)
		default:
		}
		body, err := c.send(http.MethodGet, "/v1/catalog/service/consul", "")
		if err == nil && !strings.Contains(body, "ServiceID") {
			err = fmt.Errorf("the catalog does not contain it: %s", body)
		}
		return err
	})
}

// Kill ends the process with SIGKILL.
func (c *Consul) Kill() {
	if c.stop != nil {
		c.stop()
	}
}

// Put sends a PUT request to the HTTP API and returns the response. The test fails if the request fails.
func (c *Consul) Put(path, body string) string {
	c.t.Helper()
	response, err := c.send(http.MethodPut, path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response
}

// Register registers a service instance at the agent; document is the JSON of /v1/agent/service/register.
func (c *Consul) Register(document string) {
	c.t.Helper()
	c.Put("/v1/agent/service/register", document)
}

func (c *Consul) send(method, path, body string) (string, error) {
	request, err := http.NewRequest(method, c.Address+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if c.token != "" {
		request.Header.Set("X-Consul-Token", c.token)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return string(text), err
}
