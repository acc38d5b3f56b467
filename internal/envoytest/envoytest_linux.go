// Package envoytest runs a real Envoy for the tests of a package.
package envoytest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Envoy is an Envoy process that Start started.
type Envoy struct {
	admin  string
	output *testenv.Buffer
	exited chan struct{}
}

// Start runs the Envoy at path in directory dir, with the bootstrap (YAML) and additional arguments. To the bootstrap,
// it adds an admin interface on a free port. Envoy is killed when the test ends.
func Start(t testing.TB, path, dir, bootstrap string, args ...string) *Envoy {
	t.Helper()
	config := filepath.Join(dir, "envoy.yaml")
	adminFile := filepath.Join(dir, "admin-address")
	bootstrap += "\nadmin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n"
	if err := os.WriteFile(config, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Envoy{output: &testenv.Buffer{}, exited: make(chan struct{})}
	cmd := exec.Command(path, append([]string{"-c", config, "--admin-address-path", adminFile,
		"--disable-hot-restart", "--concurrency", "1", "-l", "info"}, args...)...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = e.output, e.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	// The kernel kills the child when the thread that started it exits, so the goroutine stays on that thread.
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(e.exited)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-e.exited
		if t.Failed() {
			t.Logf("output of Envoy:\n%s", e.output)
		}
	})
	testenv.Eventually(t, "Envoy opens its admin interface", func() error {
		address, err := os.ReadFile(adminFile)
		if err != nil || len(address) == 0 {
			return fmt.Errorf("no admin address yet: %v\n%s", err, e.output)
		}
		e.admin = "http://" + strings.TrimSpace(string(address))
		_, err = e.Get("/ready")
		return err
	})
	return e
}

// Get returns the body of a GET request to the admin interface.
func (e *Envoy) Get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(e.admin + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// Output returns what Envoy has written to its standard output and standard error.
func (e *Envoy) Output() string { return e.output.String() }

// Stop requests Envoy to exit, and waits until it has exited.
func (e *Envoy) Stop() error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Post(e.admin+"/quitquitquit", "", nil)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	<-e.exited
	return nil
}
