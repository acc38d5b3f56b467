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
)

// Two workloads that know nothing of the mesh: a serves HTTP and TCP on all addresses, b calls it by name.
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

const theirServices = `
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

func capturedTopology(t *testing.T) *Topology {
	t.Helper()
	return topologyWith(t, unmodified, theirServices)
}

// topologyWith has documents in the folder istio.
func topologyWith(t *testing.T, spec, documents string) *Topology {
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

// client makes requests from the place of an instance, past its sidecar when they are for the instance itself.
func (r *running) client(instance string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return r.Dial(ctx, instance, network, address)
		},
	}}
}

// says asks for something, and gives the answer or why there is none.
func says(c *http.Client, url string) string {
	res, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", string(body))
}

func TestUnmodifiedProgramsAreInACapturedMesh(t *testing.T) {
	needNamespaces(t)
	before := machineNetwork(t)
	cfg := testConfig(t, capturedTopology(t))
	cfg.Network, cfg.AgentCommand = Captured{}, []string{os.Args[0], "agent"}
	m := bringUp(t, cfg)
	m.waitReady()
	m.networkIsUntouched(before)
	a, b := m.Instances()[0], m.Instances()[1]
	bob := "URI=spiffe://cluster.local/ns/default/sa/bob"

	app := "http://" + b.App.String() + ":9080"
	for _, name := range []string{"a", "a.default", "a.default.svc.cluster.local", "a:9080", "[" + a.Proxy6.String() + "]:9080"} {
		url := app + "/call/" + name
		if strings.Contains(name, "[") { // an address that no service has, but a route for its Host
			continue
		}
		var said string
		eventually(t, "a call to "+name, func() bool {
			said = says(m.client("b"), url)
			return strings.HasPrefix(said, "200 ")
		})
		if !strings.Contains(said, "a was called by") || !strings.Contains(said, bob) {
			t.Errorf("by %s: %s", name, said)
		}
	}
	for _, to := range []string{"a:9000", "a.default.svc.cluster.local:9000"} {
		if said := says(m.client("b"), app+"/tcp/"+to); said != "200 a was called from 127.0.0.6" {
			t.Errorf("TCP to %s: %s", to, said)
		}
	}
	m.outsidersAreRefused(a)
	m.bothFamiliesAreCaptured(a)
	m.gatewayServesBothFamilies(m.Instances()[2])
	m.machineIsReached("b")
	m.curlIsInTheMesh("b", bob)
	m.proxiesHaveNoPrivileges()
}

// outsidersAreRefused calls as somebody in the mesh's network who has no sidecar.
func (r *running) outsidersAreRefused(a *Instance) {
	r.t.Helper()
	for _, to := range []netip.Addr{a.Proxy, a.Proxy6} {
		for _, port := range []uint16{9080, 9000} {
			if said := says(r.client(""), "http://"+netip.AddrPortFrom(to, port).String()+"/who"); !strings.Contains(said, "EOF") && !strings.Contains(said, "reset") {
				r.t.Errorf("plaintext to %s, port %d: %s", to, port, said)
			}
		}
	}
}

// bothFamiliesAreCaptured calls by an address of IPv6, at which nobody but the sidecar gives the call an identity.
func (r *running) bothFamiliesAreCaptured(a *Instance) {
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
		r.t.Errorf("by IPv6: %d %s", res.StatusCode, body)
	}
}

func (r *running) gatewayServesBothFamilies(gateway *Instance) {
	r.t.Helper()
	for _, at := range []netip.Addr{gateway.Proxy, gateway.Proxy6} {
		url := "http://" + netip.AddrPortFrom(at, 8080).String() + "/who"
		var said string
		eventually(r.t, "an answer of "+url, func() bool {
			said = says(r.client(""), url)
			return strings.HasPrefix(said, "200 a was called by")
		})
	}
}

// machineIsReached calls something that listens on the machine's own loopback.
func (r *running) machineIsReached(from string) {
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
	if said := says(r.client(from), url); said != "200 the machine" {
		r.t.Errorf("asking %s: %s", url, said)
	}
	_ = server.Close()
	if said := says(r.client(from), url); strings.HasPrefix(said, "200") {
		r.t.Errorf("nobody listens, and %s", said)
	}
}

func (r *running) curlIsInTheMesh(from, identity string) {
	r.t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		r.t.Log("without curl")
		return
	}
	out, err := r.placeOf(from).run([]string{curl, "-sS", "--max-time", "5", "http://a/who"}, []string{"PATH=/usr/bin:/bin"})
	if err != nil || !strings.Contains(string(out), identity) {
		r.t.Errorf("curl says %s, %v", out, err)
	}
}

func (r *running) placeOf(instance string) *place {
	p := r.placement.(*capturedPlacement)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, at := range p.places {
		if i.Name == instance {
			return at
		}
	}
	r.t.Fatalf("%s has no place", instance)
	return nil
}

// proxiesHaveNoPrivileges but to listen on low ports, which is capability 10.
func (r *running) proxiesHaveNoPrivileges() {
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

// machineNetwork is what the machine's own network holds that a mesh might change.
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

func (r *running) networkIsUntouched(before []string) {
	r.t.Helper()
	if now := machineNetwork(r.t); !slices.Equal(before, now) {
		r.t.Errorf("the machine's network was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(now, "\n"))
	}
}

// namespacesOf are the network namespaces of a run's processes.
func namespacesOf(t *testing.T, run string) []string {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, pid := range withVariable(runVariable + "=" + run) {
		if ns, err := os.Readlink(procFile(pid, "ns/net")); err == nil && ns != own && !slices.Contains(found, ns) {
			found = append(found, ns)
		}
	}
	return found
}

// held says which of the namespaces a process of this machine is in, or holds open.
func held(namespaces []string) []string {
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

func TestAKilledCapturedMeshLeavesNoNamespace(t *testing.T) {
	needNamespaces(t)
	before := machineNetwork(t)
	top, dir := testTopology(t, oneApp), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "guarded", "fake-agent", "captured")
	namespaces := namespacesOf(t, run)
	open, _ := filepath.Glob(procFile(cmd.Process.Pid, "fd/*"))
	for _, fd := range open { // the bridge's, in which there is no process
		if ns, err := os.Readlink(fd); err == nil && strings.HasPrefix(ns, "net:") && !slices.Contains(namespaces, ns) {
			namespaces = append(namespaces, ns)
		}
	}
	if len(namespaces) != 2 {
		t.Fatalf("there are %v", namespaces)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the end of all processes", func() bool { return len(withVariable(runVariable+"="+run)) == 0 })
	eventually(t, "the end of all namespaces", func() bool { return len(held(namespaces)) == 0 })
	eventually(t, "the end of all files", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
	if now := machineNetwork(t); !slices.Equal(before, now) {
		t.Errorf("the machine's network was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(now, "\n"))
	}
}

func TestTwoCapturedMeshesMayHaveTheSameAddresses(t *testing.T) {
	needNamespaces(t)
	spec := "  network: 127.88.0.0/16\n" + oneApp
	var meshes []*running
	for range 2 {
		cfg := testConfig(t, testTopology(t, spec))
		cfg.Network = Captured{}
		meshes = append(meshes, bringUp(t, cfg))
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
		if said := says(m.client(i.Name), "http://"+i.App.String()+":9080/"); !strings.HasPrefix(said, "404") {
			t.Errorf("mesh %d: %s", n, said)
		}
		m.stop()
	}
	if left := held(namespaces); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// playExec runs a command in a workload's place: RUNTIME-DIR MESH INSTANCE COMMAND…
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

func TestACommandRunsInAWorkloadsPlace(t *testing.T) {
	for _, network := range []Network{Loopback{}, Captured{}} {
		t.Run(fmt.Sprintf("%T", network), func(t *testing.T) {
			if _, captured := network.(Captured); captured {
				needNamespaces(t)
			}
			cfg := testConfig(t, testTopology(t, oneApp))
			cfg.Network = network
			m := bringUp(t, cfg)
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
			if captured := m.placement.Captured(); (lines[0] != own) != captured || strings.Contains(lines[3], "of the mesh") != captured {
				t.Errorf("in %s, with %s", lines[0], lines[3])
			}
			if lines[1] != cmd.Dir || lines[2] != i.Name+" "+m.runID {
				t.Errorf("said %q", lines[:3])
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
				{ExitNotInside, "nobody", "true"},
				{ExitNotRun, i.Name, plain}, {ExitNotRun, i.Name, cmd.Dir},
				{ExitNoProgram, i.Name, "no-such-program"}, {ExitNoProgram, i.Name, "/nowhere/program"},
			} {
				out, err := exec.Command(os.Args[0], "exec", cfg.RuntimeDir, m.Name(), c.instance, c.program).CombinedOutput()
				if !errors.As(err, &ended) || ended.ExitCode() != c.status {
					t.Errorf("%s in %s: %v, want %d: %s", c.program, c.instance, err, c.status, out)
				}
			}
		})
	}
}

func TestAPublishedPortInUseIsToldWithItsHolder(t *testing.T) {
	needNamespaces(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t, testTopology(t, fmt.Sprintf("  workloads:\n  - {name: gw, type: gateway, ports: [{port: 8080, publish: %q}]}\n", l.Addr())))
	cfg.Network = Captured{}
	if err := runToError(t, cfg); err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "mesh.test") {
		t.Errorf("told %v", err)
	}
}

func TestAProcessInAPlaceDiesWithItsMesh(t *testing.T) {
	needNamespaces(t)
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.Network = Captured{}
	m := bringUp(t, cfg)
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

func TestNamesAreLookedUpByDNSAlone(t *testing.T) {
	got := namesByDNS("passwd: files\nhosts: mymachines resolve [!UNAVAIL=return] files myhostname dns\nnetworks: files\n")
	if got != "passwd: files\nhosts: files dns\nnetworks: files\n" {
		t.Errorf("got %q", got)
	}
}
