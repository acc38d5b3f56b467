package controlplane_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultClient.CloseIdleConnections()
		os.Exit(code)
	}))
}

// testServer is a running control plane.
type testServer struct {
	*controlplane.Server
	t    testing.TB
	stop func()
}

// freePorts are free ports, for tests that do not need fixed numbers.
var freePorts = controlplane.Ports{
	Plain: controlplane.FreePort, Secure: controlplane.FreePort, Monitoring: controlplane.FreePort,
	Tokens: controlplane.FreePort,
}

// start runs a control plane until the test ends or stop is called.
func start(t testing.TB, cfg controlplane.Config) *testServer {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = filepath.Join(t.TempDir(), "state")
	}
	if cfg.Endpoints.AllowNetworks == nil { // the tests' workloads use loopback addresses
		cfg.Endpoints.AllowNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	server, err := controlplane.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	p := &testServer{Server: server, t: t}
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(p.stop)
	testenv.Eventually(t, "the control plane serves", func() error {
		if ok, reason := server.Health(); !ok {
			return fmt.Errorf("not healthy: %s", reason)
		}
		return nil
	})
	return p
}

// get sends a request to the monitoring port.
func (p *testServer) get(path string) (int, string) {
	p.t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + p.MonitoringAddr().String() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// awaitProblem waits for a problem that contains text.
func (p *testServer) awaitProblem(text string) {
	p.t.Helper()
	testenv.Eventually(p.t, "a problem contains "+text, func() error {
		for _, problem := range p.Status().Problems {
			if strings.Contains(problem.String(), text) {
				return nil
			}
		}
		return fmt.Errorf("problems are %v", p.Status().Problems)
	})
}

// write replaces a file atomically, like an editor.
func write(t testing.TB, path, content string) {
	t.Helper()
	next := path + "~"
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// samePorts returns the ports of a control plane, for its successor.
func (p *testServer) samePorts() controlplane.Ports {
	port := func(a netip.AddrPort) int { return int(a.Port()) }
	return controlplane.Ports{Plain: port(p.PlainAddr()), Secure: port(p.SecureAddr()), Monitoring: port(p.MonitoringAddr()), Tokens: port(p.TokensAddr())}
}
