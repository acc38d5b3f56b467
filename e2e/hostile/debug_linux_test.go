package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// debugAttacks read the configuration of other workloads from the control plane's debug pages and its plaintext port.
var debugAttacks = []attack{
	{
		name:     "a captured workload reads the debug pages and the plaintext port",
		position: workload,
		limit:    "neither port answers in the network of the workloads",
		service:  "this machine reads /metrics, and the commands of pilotfish show the proxies",
		run:      readPortsOfCapturedMesh,
	},
	{
		name:     "the debug pages of a shared control plane are read without credentials",
		position: neighbor,
		limit:    "401 over the network, for other users of the machine, and for foreign web pages; the plaintext port is closed",
		service:  "/metrics and /ready answer everyone, debug pages root on the machine",
		run:      readDebugPagesWithoutCredentials,
	},
	{
		name:     "the debug pages show a workload other namespaces",
		position: workload,
		limit:    "a token sees the documents and services of its namespace, and compares no documents",
		service:  "a token of the root namespace sees the whole mesh",
		run:      readDebugPagesOfOtherNamespaces,
	},
	{
		name:     "large bodies of POST /debug/diff fill the memory",
		position: localUser,
		limit:    "one body is read at a time, up to 8 MiB",
		service:  "/ready answers meanwhile",
		run:      sendManyDiffs,
	},
}

const debugMesh = `apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: debug-attack-%d}
spec:
  config: config
  workloads:
    - {name: attacker, command: [sleep, infinity]}
`

// http2Preface makes a gRPC server answer with its settings.
const http2Preface = `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00`

func readPortsOfCapturedMesh(t *testing.T) {
	dir, err := os.MkdirTemp("", "debug")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	topology := filepath.Join(dir, "mesh.yaml")
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(topology, fmt.Appendf(nil, debugMesh, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	pilotfish := func(args ...string) *exec.Cmd {
		return exec.Command(testenv.Bin(t, "pilotfish"), append(args[:1:1], append([]string{"-f", topology, "--runtime-dir", dir + "/run"}, args[1:]...)...)...)
	}
	up, log := pilotfish("up", "--capture", "--envoy-path", testenv.Envoy(t)), &testenv.Buffer{}
	up.Stdout, up.Stderr = log, log
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
	})
	awaitLog(t, log, "The mesh is up")
	var status struct {
		ControlPlane struct{ Address, Monitoring string }
	}
	out, err := pilotfish("status", "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &status)
	}
	if err != nil {
		t.Fatal(err)
	}
	plane, _, _ := net.SplitHostPort(status.ControlPlane.Address)
	for _, attempt := range [][2]string{{"15014", `GET /debug/syncz HTTP/1.0\r\n\r\n`}, {"15010", http2Preface}} {
		script := fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s && printf '%s' >&3 && timeout 3 head -c 9 <&3`, plane, attempt[0], attempt[1])
		answer, _ := pilotfish("exec", "attacker", "--", "bash", "-c", script).Output()
		if len(answer) > 0 {
			t.Errorf("port %s answers a workload: %q", attempt[0], answer)
		}
	}
	response, err := http.Get("http://" + status.ControlPlane.Monitoring + "/metrics")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("metrics for this machine: %v, %v", response, err)
	}
	_ = response.Body.Close()
	if out, err := pilotfish("proxy-status").CombinedOutput(); !strings.Contains(string(out), "attacker") {
		t.Errorf("proxy-status: %v\n%s", err, out)
	}
}

// serviceIn is a service of a namespace, for debug pages to show.
const serviceIn = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s-service, namespace: %[1]s}
spec: {hosts: [%[1]s.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
---
`

// startWatched runs a shared control plane with services of two namespaces, and waits until it serves.
func startWatched(t *testing.T, flags ...string) *cloudMachine {
	t.Helper()
	m := newCloudMachine(t, "192.0.2.10", "192.0.2.20")
	m.startSharedControlPlane(fmt.Sprintf(serviceIn, "tenant")+fmt.Sprintf(serviceIn, "victim"), flags...)
	testenv.Eventually(t, "the control plane is ready", func() error {
		_, err := getIn(m.Namespace, "http://192.0.2.10:15014/ready", "*/*")
		return err
	})
	return m
}

func readDebugPagesWithoutCredentials(t *testing.T) {
	m := startWatched(t, "--address", "0.0.0.0")
	remote := func(path string) string {
		return m.raw("192.0.2.20", "192.0.2.10:15014", "GET "+path+" HTTP/1.0\r\n\r\n")
	}
	for _, page := range []string{"syncz", "problems", "configz", "registryz", "config_dump?proxyID=a", "registrations", "describe?proxyID=a"} {
		if answer := remote("/debug/" + page); !strings.Contains(answer, " 401 ") {
			t.Errorf("%s answers a neighbor: %s", page, answer)
		}
	}
	rebound := m.raw("127.0.0.1", "127.0.0.1:15014", "GET /debug/registryz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
	if !strings.Contains(rebound, " 401 ") {
		t.Errorf("a foreign web page is answered: %s", rebound)
	}
	other := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/15014 && printf 'GET /debug/registryz HTTP/1.0\r\n\r\n' >&3 && cat <&3`)
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	answer, ended := m.Start(t, other)
	<-ended
	if !strings.Contains(answer.String(), " 401 ") {
		t.Errorf("another user of the machine is answered: %s", answer)
	}
	if conn, err := m.dial("192.0.2.20", "192.0.2.10:15010"); err == nil {
		_ = conn.Close()
		t.Error("the plaintext port is open to the network")
	}
	for _, page := range []string{"/metrics", "/ready"} {
		if answer := remote(page); !strings.Contains(answer, " 200 ") {
			t.Errorf("%s: %s", page, answer)
		}
	}
	if page, err := getIn(m.Namespace, "http://127.0.0.1:15014/debug/registryz", "*/*"); !strings.Contains(page, "victim.example") {
		t.Errorf("root of the machine does not see the mesh: %v %s", err, page)
	}
}

func readDebugPagesOfOtherNamespaces(t *testing.T) {
	m := startWatched(t)
	token := func(namespace string) string {
		out, err := exec.Command(testenv.Bin(t, "pilotfish"), "token", "--state-dir", m.dir+"/state", "--namespace", namespace).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	get := func(page, namespace string) string {
		response, err := doIn(m.Namespace, "http://192.0.2.10:15014/debug/"+page, http.Header{"Authorization": {"Bearer " + token(namespace)}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		return string(body)
	}
	for _, page := range []string{"registryz", "configz"} {
		if own := get(page, "tenant"); strings.Contains(own, "victim") || !strings.Contains(own, "tenant") {
			t.Errorf("%s for namespace tenant: %s", page, own)
		}
		if all := get(page, "istio-system"); !strings.Contains(all, "victim") || !strings.Contains(all, "tenant") {
			t.Errorf("%s for the root namespace: %s", page, all)
		}
	}
	diff := m.raw("192.0.2.20", "192.0.2.10:15014", "POST /debug/diff HTTP/1.0\r\nAuthorization: Bearer "+token("tenant")+"\r\nContent-Length: 2\r\n\r\n{}")
	if !strings.Contains(diff, " 403 ") {
		t.Errorf("a workload compares documents of the mesh: %s", diff)
	}
	// The command line sends its token over TLS.
	m.write("token", token("istio-system"))
	out := m.run("pilotfish", "proxy-status", "-o", "json", "--control-plane", "192.0.2.10:15016", "--token-file", m.dir+"/token", "--root-cert", m.dir+"/state/authority/root-cert.pem")
	testenv.Eventually(t, "the command line has an answer", func() error {
		if strings.TrimSpace(out.String()) != "[]" {
			return fmt.Errorf("it printed %s", out)
		}
		return nil
	})
}

func sendManyDiffs(t *testing.T) {
	m := startWatched(t, "--address", "0.0.0.0")
	const count = 20
	begun := "POST /debug/diff HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000000\r\n\r\n{\"files\":[{\"text\":\"" + strings.Repeat("x", 1<<20)
	refused := make(chan bool, count)
	for range count {
		conn, err := m.dial("127.0.0.1", "127.0.0.1:15014")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			_, _ = io.WriteString(conn, begun)
			line, _ := bufio.NewReader(conn).ReadString('\n')
			refused <- strings.Contains(line, " 429 ")
		}()
	}
	deadline := time.After(time.Minute)
	for n := range count - 1 { // one is read
		select {
		case ok := <-refused:
			if !ok {
				t.Error("a body is read while another is")
			}
		case <-deadline:
			t.Fatalf("%d of %d bodies are read at a time", count-n, count)
		}
	}
	if _, err := getIn(m.Namespace, "http://192.0.2.10:15014/ready", "*/*"); err != nil {
		t.Error(err)
	}
}
