package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// grpcMesh is our own control plane with agents, for applications with and without an xDS client.
type grpcMesh struct {
	t             testing.TB
	network       string // 127.x.y
	config, state string
	plane         *exec.Cmd
	output        *testenv.Buffer
	args          []string // of the control plane
}

func newGRPCMesh(t testing.TB, network string, documents ...string) *grpcMesh {
	t.Helper()
	m := &grpcMesh{t: t, network: network, config: t.TempDir(), state: t.TempDir(), output: &testenv.Buffer{}}
	for i, d := range documents {
		m.write(fmt.Sprintf("%d.yaml", i), d)
	}
	m.startPlane()
	return m
}

func (m *grpcMesh) address(last int) string { return fmt.Sprintf("%s.%d", m.network, last) }

// text puts the mesh's network into a document.
func (m *grpcMesh) text(document string) string {
	return strings.ReplaceAll(document, "NET", m.network)
}

func (m *grpcMesh) write(name, document string) {
	m.t.Helper()
	path := filepath.Join(m.config, name)
	err := os.WriteFile(path+"~", []byte(m.text(document)), 0o600)
	if err = errors.Join(err, os.Rename(path+"~", path)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *grpcMesh) startPlane() {
	m.t.Helper()
	m.plane = exec.Command(testenv.Bin(m.t, "pilotfish"), append([]string{"control-plane", "--config-dir", m.config, "--state-dir", m.state,
		"--address", m.address(1), "--log-level", "debug"}, m.args...)...)
	m.plane.Stdout, m.plane.Stderr = m.output, m.output
	start(m.t, m.plane)
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("the control plane said:\n%s", m.output)
		}
	})
	testenv.Eventually(m.t, "the control plane listens", func() error {
		conn, err := net.DialTimeout("tcp", m.address(1)+":15012", time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// workload starts an agent of a service account "namespace/account", without Envoy unless env specifies otherwise.
func (m *grpcMesh) workload(address, account, labels string, env ...string) *proxyless {
	m.t.Helper()
	namespace, sa, _ := strings.Cut(account, "/")
	p := &proxyless{dir: m.t.TempDir(), address: address, output: &testenv.Buffer{}}
	token, err := exec.Command(testenv.Bin(m.t, "pilotfish"), "token", "--state-dir", m.state, "--namespace", namespace, "--service-account", sa).Output()
	if err != nil {
		m.t.Fatal(err)
	}
	root, err := os.ReadFile(m.findRoot())
	if err != nil {
		m.t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"var/run/secrets/istio/root-cert.pem": root,
		"var/run/secrets/tokens/istio-token":  bytes.TrimSpace(token),
		"etc/istio/pod/labels":                []byte(labels),
	} {
		path := filepath.Join(p.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600)); err != nil {
			m.t.Fatal(err)
		}
	}
	discovery := m.address(1) + ":15012"
	p.agent = exec.Command(testenv.Bin(m.t, "pilotfish-agent"), "proxy", "sidecar")
	p.agent.Dir = p.dir
	p.agent.Env = append([]string{"HOME=" + os.Getenv("HOME"), "INSTANCE_IP=" + address, "PROXY_BIND_ADDRESS=" + address, "OUTPUT_CERTS=" + p.dir + "/certs",
		"POD_NAME=" + sa, "POD_NAMESPACE=" + namespace, "SERVICE_ACCOUNT=" + sa, "CA_ADDR=" + discovery, "TRUST_DOMAIN=cluster.local",
		"ECC_SIGNATURE_ALGORITHM=ECDSA", "TERMINATION_GRACE_PERIOD=2s", "MINIMUM_DRAIN_DURATION=0s", "DISABLE_ENVOY=true",
		fmt.Sprintf("PROXY_CONFIG={discoveryAddress: %q}", discovery)}, env...)
	p.agent.Stdout, p.agent.Stderr = p.output, p.output
	p.agent.WaitDelay = time.Second
	start(m.t, p.agent)
	m.t.Cleanup(func() { // before SIGKILL, so that its Envoy ends too
		_ = p.agent.Process.Signal(syscall.SIGTERM)
		testenv.Eventually(m.t, "the agent ends", func() error {
			if p.agent.Process.Signal(syscall.Signal(0)) == nil {
				return errors.New("it runs")
			}
			return nil
		})
	})
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("the agent of %s said:\n%s", account, p.output)
		}
	})
	testenv.Eventually(m.t, "the agent is ready", func() error {
		_, err := p.get("/healthz/ready")
		return err
	})
	return p
}

// sidecar is a workload with an Envoy on its address, for an application on another.
func (m *grpcMesh) sidecar(address, app, account, labels string) *proxyless {
	m.t.Helper()
	return m.workload(address, account, labels, "DISABLE_ENVOY=false", "ENVOY_PATH="+testenv.Envoy(m.t), "ISTIO_META_INTERCEPTION_MODE=NONE",
		"ISTIO_META_APP_ADDRESS="+app)
}

// checkCall makes a call through the HTTP proxy of a sidecar.
func (p *proxyless) checkCall(authority string) error {
	return callHealth(p.address+":15080", grpc.WithAuthority(authority))
}

// callHealth makes one call, in plaintext.
func callHealth(address string, options ...grpc.DialOption) error {
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func (m *grpcMesh) findRoot() string {
	found := ""
	_ = filepath.Walk(m.state, func(path string, _ os.FileInfo, _ error) error {
		if filepath.Base(path) == "root-cert.pem" {
			found = path
		}
		return nil
	})
	return found
}

const greeters = `
apiVersion: v1
kind: Service
metadata: {name: greeter, namespace: default}
spec:
  selector: {app: greeter}
  ports: [{name: grpc, port: 7000, targetPort: 7001}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: one, namespace: default}
spec: {address: NET.11, labels: {app: greeter, version: v1, security.istio.io/tlsMode: disabled}, serviceAccount: greeter}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: two, namespace: default}
spec: {address: NET.12, labels: {app: greeter, version: v2, security.istio.io/tlsMode: disabled}, serviceAccount: greeter}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: greeter, namespace: default}
spec:
  host: greeter
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: v1
kind: Service
metadata: {name: hello, namespace: far}
spec: {type: ExternalName, externalName: greeter.default.svc.cluster.local}
`

const toVersion = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: greeter, namespace: default}
spec:
  hosts: [greeter]
  http:
  - match: [{uri: {prefix: /grpc.health.v1.}}]
    route: [{destination: {host: greeter, subset: VERSION}}]
`

// TestGRPCClientFollowsRulesOfTheMesh: by every name of the service, through the agent's relay.
func TestGRPCClientFollowsRulesOfTheMesh(t *testing.T) {
	t.Parallel()
	m := newGRPCMesh(t, "127.172.1", greeters)
	one, two := m.address(11)+":7001", m.address(12)+":7001"
	listen(t, one)
	listen(t, two)
	call := m.workload(m.address(20), "default/caller", "").caller(t)
	seen := map[string]bool{}
	for range 20 {
		for _, name := range []string{"greeter:7000", "greeter.default:7000", "greeter.default.svc.cluster.local:7000", "hello.far:7000"} {
			seen[call(name)] = true
		}
	}
	if len(seen) != 2 || !seen[one] || !seen[two] {
		t.Fatalf("answers are from %v", seen)
	}
	for version, address := range map[string]string{"v1": one, "v2": two} {
		m.write("rule.yaml", strings.ReplaceAll(toVersion, "VERSION", version))
		always(t, call, "greeter:7000", address)
		always(t, call, "hello.far.svc.cluster.local:7000", address)
	}
}

// always waits until calls of a service are all answered alike.
func always(t testing.TB, call func(string) string, service, answer string) {
	t.Helper()
	testenv.Eventually(t, "all calls of "+service+" are answered by "+answer, func() error {
		for range 20 {
			if got := call(service); got != answer {
				return errors.New(got)
			}
		}
		return nil
	})
}

// TestGRPCMembersUseMutualTLS: applications use mutual TLS with each other and with sidecars in both directions, under
// STRICT and PERMISSIVE policies. Other clients are refused.
func TestGRPCMembersUseMutualTLS(t *testing.T) {
	t.Parallel()
	m := newGRPCMesh(t, "127.172.2", `
apiVersion: v1
kind: Service
metadata: {name: greeter, namespace: default}
spec:
  selector: {app: greeter}
  ports: [{name: grpc, port: 7000, targetPort: 7001}]
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: default}
spec:
  selector: {app: old}
  ports: [{name: grpc, port: 7000, targetPort: 7001}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: greeter, namespace: default}
spec: {address: NET.11, labels: {app: greeter}, serviceAccount: greeter}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: old, namespace: default}
spec: {address: NET.12, labels: {app: old}, serviceAccount: old}
`)
	greeter := m.workload(m.address(11), "default/greeter", "app=\"greeter\"\n")
	start(t, greeter.application(t, "server "+m.address(11)+":7001"))
	m.sidecar(m.address(12), m.address(13), "default/old", "app=\"old\"\n")
	listen(t, m.address(13)+":7001")
	caller := m.workload(m.address(20), "default/caller", "app=\"caller\"\n")
	call := caller.caller(t)
	sidecar := m.sidecar(m.address(21), m.address(22), "default/other", "app=\"other\"\n")

	toGreeter := m.address(11) + ":7001 as [spiffe://cluster.local/ns/default/sa/greeter]"
	toOld := m.address(12) + ":7001 as [spiffe://cluster.local/ns/default/sa/old]"
	check := func(mode string) {
		t.Helper()
		always(t, call, "greeter:7000", toGreeter)
		always(t, call, "old:7000", toOld)
		testenv.Eventually(t, "a sidecar reaches the gRPC server, "+mode, func() error { return sidecar.checkCall("greeter.default.svc.cluster.local:7000") })
		testenv.Eventually(t, "a sidecar reaches the other, "+mode, func() error { return sidecar.checkCall("old.default.svc.cluster.local:7000") })
	}
	check("permissive")
	m.write("strict.yaml", `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`)
	check("strict")
	if err := callHealth(m.address(11) + ":7001"); err == nil {
		t.Error("a gRPC server under STRICT answers plaintext")
	}
	m.write("policy.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-sidecars, namespace: default}
spec:
  selector: {matchLabels: {app: greeter}}
  rules: [{from: [{source: {principals: [cluster.local/ns/default/sa/other]}}], to: [{operation: {paths: [/grpc.health.v1.Health/*]}}]}]
`)
	testenv.Eventually(t, "the caller is refused", func() error {
		if got := call("greeter:7000"); !strings.Contains(got, "PermissionDenied") {
			return errors.New(got)
		}
		return nil
	})
	if err := sidecar.checkCall("greeter.default.svc.cluster.local:7000"); err != nil {
		t.Errorf("whom the policy names: %v", err)
	}
	m.write("policy.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-guests, namespace: default}
spec:
  selector: {matchLabels: {app: greeter}}
  action: DENY
  rules: [{when: [{key: "request.headers[X-Role]", values: [guest]}]}]
`)
	always(t, call, "greeter:7000", toGreeter)
	if got := call("greeter:7000 x-role=guest"); !strings.Contains(got, "PermissionDenied") {
		t.Errorf("a guest: %s", got)
	}
	m.write("policy.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: default}
spec:
  selector: {matchLabels: {app: greeter}}
  action: DENY
  rules: [{when: [{key: connection.sni, values: [outbound_.7000_._.greeter.default.svc.cluster.local]}]}]
`)
	testenv.Eventually(t, "a rule about what gRPC cannot see refuses everybody", func() error {
		if got := call("greeter:7000"); !strings.Contains(got, "PermissionDenied") {
			return errors.New(got)
		}
		return nil
	})
}
