package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// NotRunningError says that there is no mesh to talk to.
type NotRunningError struct {
	// Name is the mesh that was asked for; empty: any.
	Name string
	// Running are the meshes that do run.
	Running []string
}

func (e *NotRunningError) Error() string {
	switch {
	case e.Name == "" && len(e.Running) == 0:
		return "no mesh is running: start one with `pilotfish up -f FILE` or `pilotfish demo`"
	case e.Name == "":
		return fmt.Sprintf("several meshes are running (%s): say which with --name", strings.Join(e.Running, ", "))
	case len(e.Running) == 0:
		return fmt.Sprintf("mesh %q is not running, nor is any other", e.Name)
	}
	return fmt.Sprintf("mesh %q is not running; these are: %s", e.Name, strings.Join(e.Running, ", "))
}

// Client talks to a running mesh over its control socket.
type Client struct {
	Name string
	dir  string
	http *http.Client
}

// Running lists the meshes that run with a runtime directory.
func Running(runtimeDir string) []string {
	found, _ := filepath.Glob(filepath.Join(runtimeDir, "*", socketFile))
	var names []string
	for _, socket := range found {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			names = append(names, filepath.Base(filepath.Dir(socket)))
		}
	}
	sort.Strings(names)
	return names
}

// Connect finds a running mesh; with no name, the only one.
func Connect(runtimeDir, name string) (*Client, error) {
	running := Running(runtimeDir)
	if name == "" && len(running) == 1 {
		name = running[0]
	}
	for _, r := range running {
		if r == name {
			return newClient(runtimeDir, name), nil
		}
	}
	return nil, &NotRunningError{Name: name, Running: running}
}

func newClient(runtimeDir, name string) *Client {
	dir := filepath.Join(runtimeDir, name)
	var dialer net.Dialer
	return &Client{Name: name, dir: dir, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", filepath.Join(dir, socketFile))
		},
	}}}
}

// Status asks for the mesh's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", &s)
}

// Stop asks the mesh to end, and waits until it has.
func (c *Client) Stop(ctx context.Context) error {
	if err := c.call(ctx, http.MethodPost, "/stop", nil); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(c.dir, lockFile)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("mesh %q has not ended yet: %w", c.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// StopControlPlane and StartControlPlane stop and start the embedded control plane.
func (c *Client) StopControlPlane(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/control-plane/stop", nil)
}

// StartControlPlane starts the control plane that was stopped, and returns once it serves.
func (c *Client) StartControlPlane(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/control-plane/start", nil)
}

// Restart has the application of a workload, or of one instance, started again.
func (c *Client) Restart(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/workloads/"+url.PathEscape(name)+"/restart", nil)
}

func (c *Client) call(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://mesh"+path, nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("asking mesh %q: %w", c.Name, cause(err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("reading the answer of mesh %q: %w", c.Name, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("mesh %q: %s", c.Name, strings.TrimSpace(string(body)))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the answer of mesh %q: %w", c.Name, err)
	}
	return nil
}

// Close gives the connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }
