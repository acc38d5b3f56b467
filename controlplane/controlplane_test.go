package controlplane_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func serviceEntry(name string) *config.Resource {
	return &config.Resource{
		Key: config.Key{Kind: config.ServiceEntry, Namespace: "default", Name: name},
		Spec: &networking.ServiceEntry{
			Hosts: []string{name + ".example.com"}, Resolution: networking.ServiceEntry_STATIC,
			Ports:     []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networking.WorkloadEntry{{Address: "127.0.0.1"}},
		},
	}
}

func TestNewReportsThePortInUse(t *testing.T) {
	p := startServerWithoutConfig(t)
	_, err := controlplane.New(controlplane.Config{StateDir: t.TempDir(), Ports: p.samePorts()})
	if err == nil || !strings.Contains(err.Error(), p.PlainAddr().String()) || !strings.Contains(err.Error(), "plaintext xDS") {
		t.Fatalf("error is %v", err)
	}
}

func TestCloseOfServerThatWasNotRunClosesItsPorts(t *testing.T) {
	cfg := controlplane.Config{StateDir: t.TempDir(), Address: "127.68.70.1"}
	for range 2 {
		server, err := controlplane.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if ok, reason := server.Health(); ok || reason == "" {
			t.Fatal("a server that does not run reports that it is healthy")
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailedNewClosesItsPorts(t *testing.T) {
	holder := start(t, controlplane.Config{Address: "127.68.71.1",
		Ports: controlplane.Ports{Plain: controlplane.NoPort, Secure: controlplane.NoPort, Tokens: controlplane.NoPort}})
	cfg := controlplane.Config{StateDir: t.TempDir(), Address: "127.68.71.1"} // the last port is in use
	if _, err := controlplane.New(cfg); err == nil {
		t.Fatal("two servers have one port")
	}
	holder.stop()
	start(t, cfg)
}

func TestClosedPortsHaveNoAddress(t *testing.T) {
	p := start(t, controlplane.Config{Ports: controlplane.Ports{Plain: controlplane.NoPort, Secure: controlplane.FreePort, Monitoring: controlplane.NoPort, Tokens: controlplane.NoPort}})
	if p.PlainAddr().IsValid() || p.MonitoringAddr().IsValid() || !p.SecureAddr().IsValid() {
		t.Fatalf("addresses are %v, %v, %v", p.PlainAddr(), p.SecureAddr(), p.MonitoringAddr())
	}
}

func TestBadSettingsAreRefusedWithTheRemedy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for name, c := range map[string]struct {
		cfg  controlplane.Config
		want string
	}{
		"no state directory":         {controlplane.Config{}, "state directory"},
		"address is a name":          {controlplane.Config{StateDir: t.TempDir(), Address: "localhost"}, "localhost"},
		"port out of range":          {controlplane.Config{StateDir: t.TempDir(), Ports: controlplane.Ports{Plain: 70000}}, "70000"},
		"state directory is a file":  {controlplane.Config{StateDir: file}, file},
		"no configuration directory": {controlplane.Config{StateDir: t.TempDir(), ConfigDirs: []string{file + "-none"}}, file + "-none"},
		"addresses that are none":    {controlplane.Config{StateDir: t.TempDir(), VirtualAddresses: netip.MustParsePrefix("fd00::/64")}, "240.240.0.0/16"},
		"addresses that are few":     {controlplane.Config{StateDir: t.TempDir(), VirtualAddresses: netip.MustParsePrefix("240.240.0.0/25")}, "/24"},
		"addresses that are all":     {controlplane.Config{StateDir: t.TempDir(), VirtualAddresses: netip.MustParsePrefix("0.0.0.0/0")}, "unused network"},
		"addresses of loopback":      {controlplane.Config{StateDir: t.TempDir(), VirtualAddresses: netip.MustParsePrefix("127.1.0.0/16")}, "127.0.0.0/8"},
		"no mesh configuration":      {controlplane.Config{StateDir: t.TempDir(), MeshConfigFile: file + "-none"}, file + "-none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := controlplane.New(c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, want it to contain %q", err, c.want)
			}
		})
	}
}

func TestStopEndsStreamsInOrder(t *testing.T) {
	p := startServerWithoutConfig(t)
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	_, err = stream.Recv()
	wantCode(t, err, codes.Unavailable, "the control plane is stopping: connect again")
}

func TestPlaintextPortIsOnLoopbackByDefault(t *testing.T) {
	p := startServerWithoutConfig(t)
	if !p.PlainAddr().Addr().IsLoopback() || !p.SecureAddr().Addr().IsLoopback() || !p.MonitoringAddr().Addr().IsLoopback() {
		t.Fatalf("addresses are %v, %v, %v", p.PlainAddr(), p.SecureAddr(), p.MonitoringAddr())
	}
}

func TestChangesInAStoreBecomeServices(t *testing.T) {
	store := config.NewMemoryStore()
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{store}})
	store.Put(serviceEntry("shop"))
	has := func(want bool) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("the service is there: %v", want), func() error {
			if _, body := p.get("/debug/registryz"); strings.Contains(body, "shop.example.com") != want {
				return fmt.Errorf("services are %s", body)
			}
			return nil
		})
	}
	has(true)
	store.Delete(serviceEntry("shop").Key)
	has(false)
}

// TestServicesGetVirtualAddresses checks that services without an address get one, and other services retain theirs.
func TestServicesGetVirtualAddresses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: none}
spec: {hosts: [none.example], resolution: STATIC, ports: [{number: 1, name: tcp}], endpoints: [{address: 192.0.2.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own}
spec: {hosts: [own.example], addresses: [192.0.2.9], resolution: STATIC, ports: [{number: 1, name: tcp}], endpoints: [{address: 192.0.2.1}]}
`)
	p := start(t, controlplane.Config{Ports: freePorts, ConfigDirs: []string{dir}, VirtualAddresses: netip.MustParsePrefix("240.240.0.0/16")})
	given := regexp.MustCompile(`"240\.240\.\d+\.\d+"`)
	testenv.Eventually(t, "the services are there", func() error {
		_, body := p.get("/debug/registryz")
		all := given.FindAllString(body, -1)
		slices.Sort(all)
		if len(slices.Compact(all)) != 1 || !strings.Contains(body, `"192.0.2.9"`) {
			return fmt.Errorf("services are %s", body)
		}
		return nil
	})
}

func TestBurstOfChangesIsOneBatch(t *testing.T) {
	store := config.NewMemoryStore()
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{store},
		Debounce: controlplane.Debounce{After: 300 * time.Millisecond, Max: 20 * time.Second}})
	before := countBuilds(t, p)
	for i := range 200 {
		store.Put(serviceEntry(fmt.Sprintf("s%d", i)))
	}
	testenv.Eventually(t, "the last change is built", func() error {
		if _, body := p.get("/debug/registryz"); !strings.Contains(body, "s199.example.com") {
			return fmt.Errorf("services are %.200s", body)
		}
		return nil
	})
	if n := countBuilds(t, p) - before; n > 5 {
		t.Fatalf("200 changes in a row made %d snapshots", n)
	}
}

// countBuilds returns the number of snapshots built so far.
func countBuilds(t *testing.T, p *testServer) int {
	t.Helper()
	_, metrics := p.get("/metrics")
	_, rest, _ := strings.Cut(metrics, "pilot_pushcontext_init_seconds_count ")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMeshConfigurationIsReadStrictlyAndWatched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, "trustDomain: shop.test\nproxyHttpPort: 15080\n")
	cfg := controlplane.Config{Ports: freePorts, StateDir: filepath.Join(t.TempDir(), "state"), MeshConfigFile: file}
	p := start(t, cfg)
	if got := p.Authority().TrustDomain(); got != "shop.test" {
		t.Fatalf("trust domain is %q", got)
	}
	before := countBuilds(t, p)
	write(t, file, "trustDomain: shop.test\nproxyHttpPorrt: 15081\n")
	p.awaitProblem("proxyHttpPorrt")
	if countBuilds(t, p) != before {
		t.Fatal("a refused mesh configuration was built")
	}
	write(t, file, "trustDomain: shop.test\nproxyHttpPort: 15081\n")
	testenv.Eventually(t, "the mesh configuration is in force", func() error {
		if countBuilds(t, p) == before || len(p.Status().Problems) > 0 {
			return fmt.Errorf("not built, or problems: %v", p.Status().Problems)
		}
		return nil
	})
	p.stop()
	write(t, file, "trustDomains: x\n")
	if _, err := controlplane.New(cfg); err == nil || !strings.Contains(err.Error(), "trustDomains") {
		t.Fatalf("error is %v", err)
	}
}

func TestFindingsOfGivenMeshConfigurationAreReported(t *testing.T) {
	said := config.Problem{Code: config.NoEffect, Severity: config.Warning, At: config.Position{File: "mesh.yaml", Line: 4}, Field: "spec.mesh.ingressClass"}
	p := start(t, controlplane.Config{Ports: freePorts, MeshProblems: []config.Problem{said}})
	p.awaitProblem("spec.mesh.ingressClass")
}

// run executes a command like the program, and returns its output.
func run(ctx context.Context, args ...string) (string, error) {
	cmd := controlplane.NewCommand()
	if args[0] == "token" {
		cmd = controlplane.NewTokenCommand()
	}
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args[1:])
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestTokenCommandUsesTheAuthorityInTheStateDirectory(t *testing.T) {
	state := t.TempDir()
	authority, err := ca.Load(state, ca.Options{})
	if err != nil {
		t.Fatal(err)
	}
	printed, err := run(t.Context(), "token", "--state-dir", state, "--namespace", "shop", "--service-account", "reviews", "--ttl", "5m")
	if err != nil {
		t.Fatal(err)
	}
	id, err := authority.VerifyToken(strings.TrimSpace(printed))
	if err != nil || id.Namespace != "shop" || id.ServiceAccount != "reviews" {
		t.Fatalf("the token proves %v, %v", id, err)
	}
	file := filepath.Join(t.TempDir(), "istio-token")
	if _, err := run(t.Context(), "token", "--state-dir", state, "--out", file); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token's file is %v, %v", info, err)
	}
}

func TestTokenCommandDoesNotCreateAnAuthority(t *testing.T) {
	state := filepath.Join(t.TempDir(), "none")
	if _, err := run(t.Context(), "token", "--state-dir", state); err == nil || !strings.Contains(err.Error(), state) {
		t.Fatalf("error is %v", err)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Fatalf("the state directory was made: %v", err)
	}
}

func TestControlPlaneCommandServesUntilStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "control-plane", "--config-dir", t.TempDir(), "--state-dir", filepath.Join(t.TempDir(), "s"), "--address", "127.68.72.1")
		ended <- err
	}()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	testenv.Eventually(t, "it is ready", func() error {
		resp, err := client.Get("http://127.68.72.1:15014/healthz/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestControlPlaneCommandRequiresADirectory(t *testing.T) {
	if _, err := run(t.Context(), "control-plane"); err == nil || !strings.Contains(err.Error(), "config-dir") {
		t.Fatalf("error is %v", err)
	}
}
