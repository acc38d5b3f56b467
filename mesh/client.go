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

// NotRunningError reports that the requested mesh is not running, or that no mesh was named and several are running.
type NotRunningError struct {
	// Name is the requested mesh. It is empty if the request was for any mesh.
	Name string
	// Running lists the meshes that are running.
	Running []string
}

func (e *NotRunningError) Error() string {
	switch {
	case e.Name == "" && len(e.Running) == 0:
		return "no mesh is running: start one with `pilotfish up -f FILE` or `pilotfish demo`"
	case e.Name == "":
		return fmt.Sprintf("several meshes are running (%s): select one with --name", strings.Join(e.Running, ", "))
	case len(e.Running) == 0:
		return fmt.Sprintf("mesh %q is not running, and no other mesh is running", e.Name)
	}
	return fmt.Sprintf("mesh %q is not running; running meshes: %s", e.Name, strings.Join(e.Running, ", "))
}

// Client calls the control socket of a running mesh.
type Client struct {
	Name string
	dir  string
	http *http.Client
}

// RunningMeshes returns the names of the running meshes whose directory is in runtimeDir, sorted.
func RunningMeshes(runtimeDir string) []string {
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

// Connect returns a client for the running mesh that is called name. An empty name selects the only running mesh.
// Connect returns a *NotRunningError if there is no such mesh, or if name is empty and several meshes are running.
func Connect(runtimeDir, name string) (*Client, error) {
	running := RunningMeshes(runtimeDir)
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

// Status returns the mesh's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", &s)
}

// Stop requests the mesh to stop, and waits until it has ended.
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
			return fmt.Errorf("mesh %q is still shutting down: %w", c.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// StopControlPlane stops the embedded control plane.
func (c *Client) StopControlPlane(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/control-plane/stop", nil)
}

// StartControlPlane starts a stopped control plane. It returns when the control plane serves clients.
func (c *Client) StartControlPlane(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/control-plane/start", nil)
}

// Restart requests a restart of one instance's application, or of the applications of all instances of a workload.
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
		return fmt.Errorf("sending a request to mesh %q: %w", c.Name, innermostError(err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("reading the response of mesh %q: %w", c.Name, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("mesh %q reports: %s", c.Name, strings.TrimSpace(string(body)))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the response of mesh %q: %w", c.Name, err)
	}
	return nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
