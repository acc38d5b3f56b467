package istio

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// plane is this project's control plane, as a process on a node, with documents that tests write into its directory.
type plane struct {
	node   *node
	dir    string
	output *testenv.Buffer
	cmd    *exec.Cmd
	ended  <-chan struct{}
}

const planeDocuments = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: books}
spec: {clusterIP: ` + reviewsService + `, selector: {app: reviews}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: books}
spec: {clusterIP: 10.96.0.11, selector: {app: web}, ports: [{name: http, port: 9080}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: reviews, namespace: books}
spec: {template: {serviceAccount: reviews, labels: {app: reviews}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: books}
spec: {template: {serviceAccount: web, labels: {app: web}}}
---
` + strict

func newPlane(t testing.TB, n *node) *plane {
	t.Helper()
	p := &plane{node: n, dir: t.TempDir()}
	if err := os.MkdirAll(p.path("documents"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.put(t, "mesh", planeDocuments)
	p.start(t)
	return p
}

func (p *plane) start(t testing.TB) {
	t.Helper()
	p.cmd = exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--config-dir", p.path("documents"),
		"--state-dir", p.path("state"), "--address", p.node.address.String())
	p.output, p.ended = p.node.Start(t, p.cmd)
	testenv.Eventually(t, "the control plane is ready", func() error {
		_, err := p.node.get("http://" + p.node.address.String() + ":15014/ready")
		return err
	})
}

func (p *plane) path(name string) string { return filepath.Join(p.dir, name) }

func (p *plane) put(t testing.TB, name, text string) {
	t.Helper()
	file := filepath.Join(p.path("documents"), name+".yaml")
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// roots are what its workloads know it by.
func (p *plane) roots(t testing.TB) string {
	t.Helper()
	roots, err := os.ReadFile(filepath.Join(p.path("state"), "authority", "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(roots)
}

func (p *plane) token(t testing.TB, namespace, account string) string {
	t.Helper()
	token, err := exec.Command(testenv.Bin(t, "pilotfish"), "token", "--state-dir", p.path("state"), "--namespace", namespace,
		"--service-account", account).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// debugPage reads a debug page over the node's address, which requires a token.
func (p *plane) debugPage(name, token string) ([]byte, error) {
	return p.node.get("http://"+p.node.address.String()+":15014/debug/"+name, "Authorization", "Bearer "+token)
}

// istioAgent builds Istio's own agent and lays out the files that its image contains.
func istioAgent(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(istiodBinary(t)), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make istiod`", err)
	}
	return path
}

// newPodAt creates a pod with the mounts that Istio's injector requests; start chooses the agent.
func newPodAt(t testing.TB, p *plane, name, address string) *pod {
	t.Helper()
	made := &pod{node: p.node, name: name, address: netip.MustParseAddr(address), dir: t.TempDir()}
	made.namespace = p.node.sandbox(t, made.address)
	made.write(t, tokenPath, p.token(t, books, name))
	made.write(t, rootsPath, p.roots(t))
	made.write(t, "etc/istio/pod/labels", fmt.Sprintf("app=%q\n", name))
	made.write(t, "etc/istio/pod/annotations", "")
	made.write(t, "hosts", fmt.Sprintf("127.0.0.1 localhost\n%s istiod.istio-system.svc\n", p.node.address))
	made.write(t, "var/lib/istio/data/.keep", "")
	bootstrap, err := os.ReadFile(istioAgent(t, "envoy_bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	made.write(t, "var/lib/istio/envoy/envoy_bootstrap_tmpl.json", string(bootstrap))
	made.redirect(t)
	return made
}

// startAs starts an agent with the environment and arguments of an injected sidecar, and more in its environment. All that it starts ends with it,
// for Istio's leaves its Envoy behind when it is killed.
func (p *pod) startAs(t testing.TB, agent, envoy string, extra ...string) *pod {
	t.Helper()
	p.cmd = exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inMountsScript, "sh", agent, "proxy", "sidecar",
		"--domain", books+".svc.cluster.local", "--proxyLogLevel=warning", "--proxyComponentLogLevel=misc:error",
		"--log_output_level=default:info")
	p.cmd.Dir = p.dir
	p.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012",
		"POD_NAME=" + p.name, "POD_NAMESPACE=" + books, "INSTANCE_IP=" + p.address.String(), "SERVICE_ACCOUNT=" + p.name,
		"HOST_IP=" + p.node.address.String(), "ISTIO_CPU_LIMIT=2", "ENVOY_PATH=" + envoy, "ISTIO_META_AUTO_REGISTER_GROUP=" + p.name,
		fmt.Sprintf(`PROXY_CONFIG={"binaryPath":%q,"readinessProbe":{"httpGet":{"path":"/","port":9080},"periodSeconds":1}}`, envoy),
		`ISTIO_META_POD_PORTS=[{"containerPort":9080,"protocol":"TCP"}]`, "ISTIO_META_APP_CONTAINERS=" + p.name,
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_NODE_NAME=node-1", "ISTIO_META_INTERCEPTION_MODE=REDIRECT",
		"ISTIO_META_WORKLOAD_NAME=" + p.name, "ISTIO_META_MESH_ID=cluster.local", "TRUST_DOMAIN=cluster.local",
		"ISTIO_META_DNS_CAPTURE=true", "PROXY_CONFIG_XDS_AGENT=true",
	}
	p.cmd.Env = append(p.cmd.Env, extra...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: proxyGroup}}
	p.output, p.ended = p.namespace.Start(t, p.cmd)
	return p
}

// TestAgentOfIstioIsAClientLikeOurOwn: Istio's unmodified agent, with the upstream Envoy, gets its certificate, its
// configuration and the mesh's names, and carries mutual TLS in both directions with a sidecar of ours. Both are known to
// the mesh by connecting, and get calls while their agents report them healthy.
func TestAgentOfIstioIsAClientLikeOurOwn(t *testing.T) {
	t.Parallel()
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "10.157.0.1")
			p := newPlane(t, n)
			envoy := testenv.EnvoyOf(t, version)
			theirs := newPodAt(t, p, "web", webAddress).startAs(t, istioAgent(t, "pilot-agent"), envoy)
			ours := newPodAt(t, p, "reviews", reviewsAddress).startAs(t, testenv.Bin(t, "pilotfish-agent"), envoy)
			p.waitRegistered(t, map[string]bool{"books/web-" + webAddress: false, "books/reviews-" + reviewsAddress: false})
			theirs.application(t, "web")
			ours.application(t, "reviews")
			theirs.waitReady(t, n)
			ours.waitReady(t, n)
			p.waitRegistered(t, map[string]bool{"books/web-" + webAddress: true, "books/reviews-" + reviewsAddress: true})
			theirs.waitAnswer(t, 200, "URI=spiffe://cluster.local/ns/books/sa/web")
			testenv.Eventually(t, "ours calls theirs", func() error {
				code, body, err := ours.request("http://10.96.0.11:9080/", "Host", "web:9080")
				if err != nil || code != 200 || !strings.Contains(string(body), "URI=spiffe://cluster.local/ns/books/sa/reviews") {
					return fmt.Errorf("%d %s %w", code, body, err)
				}
				return nil
			})
			theirs.checkResolves(t, "reviews.books.svc.cluster.local.", reviewsService)
			theirs.waitInSync(t, p)
			for _, pod := range []*pod{theirs, ours} {
				if _, _, err := n.request("http://" + pod.address.String() + ":9080/"); err == nil {
					t.Errorf("%s takes plaintext under STRICT", pod.name)
				}
			}
		})
	}
}

// waitRegistered waits until these workloads have registered, and are in force or not.
func (p *plane) waitRegistered(t testing.TB, want map[string]bool) {
	t.Helper()
	bearer := p.token(t, "istio-system", "operator")
	testenv.Eventually(t, "the workloads register", func() error {
		var registered []struct {
			Entry   string
			InForce bool
		}
		body, err := p.debugPage("registrations", bearer)
		if err == nil {
			err = json.Unmarshal(body, &registered)
		}
		got := map[string]bool{}
		for _, r := range registered {
			got[r.Entry] = r.InForce
		}
		if err != nil || !maps.Equal(got, want) {
			return fmt.Errorf("%s: %w", body, err)
		}
		return nil
	})
}

// checkResolves queries the agent's DNS resolver until it returns the wanted address.
func (p *pod) checkResolves(t testing.TB, name, want string) {
	t.Helper()
	testenv.Eventually(t, p.name+" resolves "+name, func() error {
		conn, err := p.dial(t.Context(), "tcp", "127.0.0.1:15053")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		client := dns.Client{Net: "tcp"}
		answer, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
		if err != nil || len(answer.Answer) != 1 || !strings.HasSuffix(answer.Answer[0].String(), "\t"+want) {
			return fmt.Errorf("%v, %w", answer, err)
		}
		return nil
	})
}

// waitInSync checks that the control plane knows the pod's proxy to have accepted all that it was sent.
func (p *pod) waitInSync(t testing.TB, by *plane) {
	t.Helper()
	bearer := by.token(t, "istio-system", "operator")
	testenv.Eventually(t, p.name+" is in sync", func() error {
		var clients []struct {
			Node, Identity string
			InSync         bool
			Types          []struct {
				TypeURL   string
				Rejection any
			}
		}
		body, err := by.debugPage("syncz", bearer)
		if err == nil {
			err = json.Unmarshal(body, &clients)
		}
		if err != nil {
			return err
		}
		for _, c := range clients {
			if !strings.Contains(c.Node, "~"+p.name+"."+books+"~") {
				continue
			}
			if !c.InSync || c.Identity != "spiffe://cluster.local/ns/"+books+"/sa/"+p.name || len(c.Types) < 6 {
				return fmt.Errorf("%s", body)
			}
			for _, kind := range c.Types {
				if kind.Rejection != nil {
					t.Errorf("%s has rejected %s: %v", p.name, kind.TypeURL, kind.Rejection)
				}
			}
			return nil
		}
		return fmt.Errorf("it is not among %s", body)
	})
}
