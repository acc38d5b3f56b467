package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// The applications of these two workloads are not configured for the mesh: a serves HTTP and TCP on all addresses, b
// calls a by its name.
const unmodified = `
  config: istio
  workloads:
  - name: a
    serviceAccount: alice
    command: ["${PILOTFISH}", caller]
    env: {PILOTFISH_APP_ADDRESS: "", PORT_TCP: "9000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: tcp, port: 9000}]
  - name: b
    serviceAccount: bob
    command: ["${PILOTFISH}", caller]
    env: {PILOTFISH_APP_ADDRESS: ""}
    ports: [{name: http, port: 9080, protocol: HTTP}]
    upstreams: [{host: a, port: 9000}]
  - name: gw
    type: gateway
    labels: {istio: gw}
    ports: [{name: http, port: 8080, protocol: HTTP}]
`

const calledServices = `
apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  selector: {app: a}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: http-direct, port: 9080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec:
  selector: {app: b}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw}
spec: {selector: {istio: gw}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: gw}
spec: {hosts: ["*"], gateways: [gw], http: [{route: [{destination: {host: a, port: {number: 80}}}]}]}
`

func needNamespaces(t *testing.T) {
	t.Helper()
	if err := CanCapture(); err != nil {
		t.Skip(err)
	}
}

func capturedTopology(t *testing.T) *topology.Topology {
	t.Helper()
	return topologyWith(t, unmodified, calledServices)
}

// topologyWith returns a topology whose directory istio contains the documents.
func topologyWith(t *testing.T, spec, documents string) *topology.Topology {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "istio"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "istio", "services.yaml"), []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	return writeTopology(t, dir, spec)
}

// client sends requests from the sandbox of an instance. Requests to the instance itself bypass its sidecar.
func (r *testMesh) client(instance string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return r.Dial(ctx, instance, network, address)
		},
	}}
}

// getBody returns the body of a response, or the error.
func getBody(c *http.Client, url string) string {
	res, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", string(body))
}

func TestCapturedMeshServesUnmodifiedPrograms(t *testing.T) {
	needNamespaces(t)
	before := machineNetwork(t)
	cfg := testConfig(t, capturedTopology(t))
	cfg.Network, cfg.AgentCommand = Captured{}, []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	m.networkIsUntouched(before)
	a, b := m.Instances()[0], m.Instances()[1]
	bob := "URI=spiffe://cluster.local/ns/default/sa/bob"

	app := "http://" + b.App.String() + ":9080"
	for _, name := range []string{"a", "a.default", "a.default.svc.cluster.local", "a:9080", "[" + a.Proxy6.String() + "]:9080"} {
		url := app + "/call/" + name
		if strings.Contains(name, "[") { // an address without a service; the Host header matches a route
			continue
		}
		var answer string
		eventually(t, "a call to "+name, func() bool {
			answer = getBody(m.client("b"), url)
			return strings.HasPrefix(answer, "200 ")
		})
		if !strings.Contains(answer, "a was called by") || !strings.Contains(answer, bob) {
			t.Errorf("by %s: %s", name, answer)
		}
	}
	for _, to := range []string{"a:9000", "a.default.svc.cluster.local:9000"} {
		if answer := getBody(m.client("b"), app+"/tcp/"+to); answer != "200 a was called from 127.0.0.6" {
			t.Errorf("TCP to %s: %s", to, answer)
		}
	}
	m.plaintextClientsAreRefused(a)
	m.bothFamiliesAreCaptured(a)
	m.gatewayServesBothFamilies(m.Instances()[2])
	m.machineIsReached("b")
	m.curlIsInTheMesh("b", bob)
	m.proxiesHaveNoPrivileges()
	m.applicationsHaveOrdinaryCapabilities()
}

// plaintextClientsAreRefused connects as a client in the mesh's network without a sidecar.
func (r *testMesh) plaintextClientsAreRefused(a *topology.Instance) {
	r.t.Helper()
	for _, to := range []netip.Addr{a.Proxy, a.Proxy6} {
		for _, port := range []uint16{9080, 9000} {
			if answer := getBody(r.client(""), "http://"+netip.AddrPortFrom(to, port).String()+"/who"); !strings.Contains(answer, "EOF") && !strings.Contains(answer, "reset") {
				r.t.Errorf("plaintext to %s, port %d: %s", to, port, answer)
			}
		}
	}
}

// bothFamiliesAreCaptured calls an IPv6 address. Only the sidecar can add the identity to the call.
func (r *testMesh) bothFamiliesAreCaptured(a *topology.Instance) {
	r.t.Helper()
	request, err := http.NewRequest(http.MethodGet, "http://"+netip.AddrPortFrom(a.Proxy6, 9080).String()+"/who", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Host = "a:9080"
	res, err := r.client("b").Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), "/sa/bob") {
		r.t.Errorf("the call over IPv6 returned %d %s", res.StatusCode, body)
	}
}

func (r *testMesh) gatewayServesBothFamilies(gateway *topology.Instance) {
	r.t.Helper()
	for _, at := range []netip.Addr{gateway.Proxy, gateway.Proxy6} {
		url := "http://" + netip.AddrPortFrom(at, 8080).String() + "/who"
		var answer string
		eventually(r.t, "an answer of "+url, func() bool {
			answer = getBody(r.client(""), url)
			return strings.HasPrefix(answer, "200 a was called by")
		})
	}
}

// machineIsReached calls a server on the machine's own loopback.
func (r *testMesh) machineIsReached(from string) {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.178.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	_ = l.Close()
	if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		r.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the machine") }), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	url := fmt.Sprintf("http://%s:%d/", HostName, l.Addr().(*net.TCPAddr).Port)
	if answer := getBody(r.client(from), url); answer != "200 the machine" {
		r.t.Errorf("calling %s: %s", url, answer)
	}
	_ = server.Close()
	if answer := getBody(r.client(from), url); strings.HasPrefix(answer, "200") {
		r.t.Errorf("without a listener: %s", answer)
	}
}

func (r *testMesh) curlIsInTheMesh(from, identity string) {
	r.t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		r.t.Log("without curl")
		return
	}
	out, err := r.sandboxOf(from).run([]string{curl, "-sS", "--max-time", "5", "http://a/who"}, []string{"PATH=/usr/bin:/bin"})
	if err != nil || !strings.Contains(string(out), identity) {
		r.t.Errorf("curl prints %s, %v", out, err)
	}
}

func (r *testMesh) sandboxOf(instance string) *sandbox {
	p := r.placement.(*capturedPlacement)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, at := range p.sandboxes {
		if i.Name == instance {
			return at
		}
	}
	r.t.Fatalf("instance %s has no sandbox", instance)
	return nil
}

// proxiesHaveNoPrivileges checks that proxies have only the capability to listen on low ports (10).
func (r *testMesh) proxiesHaveNoPrivileges() {
	r.t.Helper()
	for _, i := range r.Status(context.Background()).Instances {
		for _, pid := range []int{i.Agent.PID, i.EnvoyPID} {
			status, err := os.ReadFile(procFile(pid, "status"))
			if err != nil {
				r.t.Fatal(err)
			}
			for _, want := range []string{"CapEff:\t0000000000000400", "CapBnd:\t0000000000000400", "CapInh:\t0000000000000000", "Gid:\t1337\t1337\t1337\t1337"} {
				if !strings.Contains(string(status), want) {
					r.t.Errorf("process %d of %s: no %q in %s", pid, i.Name, want, status)
				}
			}
		}
	}
}

// applicationsHaveOrdinaryCapabilities checks that applications have the capabilities of a container, except those for
// networks.
func (r *testMesh) applicationsHaveOrdinaryCapabilities() {
	r.t.Helper()
	var allowed uint64
	for _, number := range new(topology.Workload).Capabilities() {
		allowed |= 1 << number
	}
	for _, i := range r.Status(context.Background()).Instances {
		if i.App == nil {
			continue
		}
		status, err := os.ReadFile(procFile(i.App.PID, "status"))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, want := range []string{fmt.Sprintf("CapBnd:\t%016x\n", allowed), "CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
			if !strings.Contains(string(status), want) {
				r.t.Errorf("the application of %s: no %q in %s", i.Name, want, status)
			}
		}
	}
}

// machineNetwork lists the state of the machine's own network that a mesh might change.
func machineNetwork(t *testing.T) []string {
	t.Helper()
	var all []string
	add := func(what string, v any) { all = append(all, fmt.Sprintf("%s %v", what, v)) }
	links, err := netlink.LinkList()
	for _, l := range links {
		addresses, addrErr := netlink.AddrList(l, netlink.FAMILY_ALL)
		err = errors.Join(err, addrErr)
		add("link", fmt.Sprint(l.Attrs().Name, " ", l.Type(), " ", addresses))
	}
	routes, routeErr := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	for _, r := range routes {
		add("route", r)
	}
	rules, ruleErr := netlink.RuleList(netlink.FAMILY_ALL)
	for _, r := range rules {
		add("rule", r)
	}
	c, nftErr := nftables.New()
	if err := errors.Join(err, routeErr, ruleErr, nftErr); err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		add("table", table.Name)
	}
	return all
}

func (r *testMesh) networkIsUntouched(before []string) {
	r.t.Helper()
	if now := machineNetwork(r.t); !slices.Equal(before, now) {
		r.t.Errorf("the machine's network was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(now, "\n"))
	}
}

// namespacesOf returns the network namespaces of a run's processes.
func namespacesOf(t *testing.T, run string) []string {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, pid := range processesWithVariable(runVariable + "=" + run) {
		if ns, err := os.Readlink(procFile(pid, "ns/net")); err == nil && ns != own && !slices.Contains(found, ns) {
			found = append(found, ns)
		}
	}
	return found
}

// referencedNamespaces returns the namespaces that contain a process of this machine or that a process holds open.
func referencedNamespaces(namespaces []string) []string {
	var found []string
	for _, pid := range processIDs() {
		links := []string{procFile(pid, "ns/net")}
		open, _ := filepath.Glob(procFile(pid, "fd/*"))
		for _, link := range append(links, open...) {
			if ns, err := os.Readlink(link); err == nil && slices.Contains(namespaces, ns) {
				found = append(found, link)
			}
		}
	}
	return found
}

func TestKilledCapturedMeshLeavesNoNamespace(t *testing.T) {
	needNamespaces(t)
	before := machineNetwork(t)
	top, dir := testTopology(t, oneApp), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "guarded", "fake-agent", "captured")
	namespaces := namespacesOf(t, run)
	open, _ := filepath.Glob(procFile(cmd.Process.Pid, "fd/*"))
	for _, fd := range open { // the bridge's namespace, which contains no process
		if ns, err := os.Readlink(fd); err == nil && strings.HasPrefix(ns, "net:") && !slices.Contains(namespaces, ns) {
			namespaces = append(namespaces, ns)
		}
	}
	if len(namespaces) != 2 {
		t.Fatalf("the namespaces are %v", namespaces)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "all processes end", func() bool { return len(processesWithVariable(runVariable+"="+run)) == 0 })
	eventually(t, "all namespaces are removed", func() bool { return len(referencedNamespaces(namespaces)) == 0 })
	eventually(t, "all files are removed", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
	if now := machineNetwork(t); !slices.Equal(before, now) {
		t.Errorf("the machine's network was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(now, "\n"))
	}
}

func TestCapturedMeshesCanShareAddresses(t *testing.T) {
	needNamespaces(t)
	spec := "  network: 127.88.0.0/16\n" + oneApp
	var meshes []*testMesh
	for range 2 {
		cfg := testConfig(t, testTopology(t, spec))
		cfg.Network = Captured{}
		meshes = append(meshes, startMesh(t, cfg))
	}
	var namespaces []string
	for _, m := range meshes {
		m.waitReady()
		if s := m.Status(context.Background()); s.Network != "10.88.0.0/16" || !s.Captured {
			t.Errorf("network %s, captured %v", s.Network, s.Captured)
		}
		namespaces = append(namespaces, namespacesOf(t, m.runID)...)
	}
	for n, m := range meshes {
		i := m.Instances()[0]
		if answer := getBody(m.client(i.Name), "http://"+i.App.String()+":9080/"); !strings.HasPrefix(answer, "404") {
			t.Errorf("mesh %d: %s", n, answer)
		}
		m.stop()
	}
	if left := referencedNamespaces(namespaces); len(left) > 0 {
		t.Errorf("remaining namespaces: %v", left)
	}
}

// playExec runs a command in a workload's sandbox: RUNTIME-DIR MESH INSTANCE COMMAND…
func playExec(args []string) {
	c, err := Connect(args[0], args[1])
	fail(err)
	err = c.Exec(context.Background(), args[2], args[3:], os.Environ())
	var failed *ExecError
	if errors.As(err, &failed) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(failed.Status)
	}
	fail(err)
}

func TestExecRunsCommandInWorkloadSandbox(t *testing.T) {
	for _, network := range []Network{Loopback{}, Captured{}} {
		t.Run(fmt.Sprintf("%T", network), func(t *testing.T) {
			if _, captured := network.(Captured); captured {
				needNamespaces(t)
			}
			cfg := testConfig(t, testTopology(t, oneApp))
			cfg.Network = network
			m := startMesh(t, cfg)
			m.waitReady()
			i := m.Instances()[0]
			cmd := exec.Command(os.Args[0], "exec", cfg.RuntimeDir, m.Name(), i.Name, "sh", "-c", "readlink /proc/self/ns/net; pwd; echo $PILOTFISH_NAME $PILOTFISH_RUN; cat /etc/resolv.conf; exit 7")
			cmd.Dir = t.TempDir()
			out, err := cmd.Output()
			var ended *exec.ExitError
			if !errors.As(err, &ended) || ended.ExitCode() != 7 {
				t.Fatalf("%v: %s", err, out)
			}
			lines := strings.SplitN(string(out), "\n", 4)
			own, _ := os.Readlink("/proc/self/ns/net")
			if captured := m.placement.Captured(); (lines[0] != own) != captured || strings.Contains(lines[3], "written by pilotfish") != captured {
				t.Errorf("the program ran in the namespace %s, with resolv.conf %s", lines[0], lines[3])
			}
			if lines[1] != cmd.Dir || lines[2] != i.Name+" "+m.runID {
				t.Errorf("printed %q", lines[:3])
			}
			plain := filepath.Join(cmd.Dir, "plain")
			if err := os.WriteFile(plain, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				status   int
				instance string
				program  string
			}{
				{ExitCannotJoin, "nobody", "true"},
				{ExitCannotRun, i.Name, plain}, {ExitCannotRun, i.Name, cmd.Dir},
				{ExitNotFound, i.Name, "no-such-program"}, {ExitNotFound, i.Name, "/nowhere/program"},
			} {
				out, err := exec.Command(os.Args[0], "exec", cfg.RuntimeDir, m.Name(), c.instance, c.program).CombinedOutput()
				if !errors.As(err, &ended) || ended.ExitCode() != c.status {
					t.Errorf("%s in %s: %v, want %d: %s", c.program, c.instance, err, c.status, out)
				}
			}
		})
	}
}

func TestPublishedPortInUseNamesOwner(t *testing.T) {
	needNamespaces(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t, testTopology(t, fmt.Sprintf("  workloads:\n  - {name: gw, type: gateway, ports: [{port: 8080, publish: %q}]}\n", l.Addr())))
	cfg.Network = Captured{}
	if err := runToError(t, cfg); err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "mesh.test") {
		t.Errorf("got %v", err)
	}
}

func TestSandboxProcessDiesWithMesh(t *testing.T) {
	needNamespaces(t)
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.Network = Captured{}
	m := startMesh(t, cfg)
	m.waitReady()
	pid := m.instance(m.Instances()[0].Name).App.PID
	var before syscall.Stat_t
	if err := syscall.Stat(procFile(pid, "ns/net"), &before); err != nil {
		t.Fatal(err)
	}
	m.stop()
	if _, err := os.Stat(procFile(pid, "ns/net")); err == nil {
		t.Error("the application runs on")
	}
}

func TestNsswitchUsesOnlyFilesAndDNS(t *testing.T) {
	got := useFilesAndDNS("passwd: files\nhosts: mymachines resolve [!UNAVAIL=return] files myhostname dns\nnetworks: files\n")
	if got != "passwd: files\nhosts: files dns\nnetworks: files\n" {
		t.Errorf("got %q", got)
	}
}
