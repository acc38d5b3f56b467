package istio

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	tokenPath = "var/run/secrets/tokens/istio-token"
	rootsPath = "var/run/secrets/istio/root-cert.pem"
)

// pod is a workload as Istio's injector and CNI plugin leave it: a network namespace with redirection, an application,
// and a directory with what the kubelet mounts.
type pod struct {
	*namespace
	node    *node
	name    string
	address netip.Addr
	dir     string
	// as is the pod as Istio's injector has changed it, and proxy the container that it has put in.
	as     *injected
	proxy  container
	output *testenv.Buffer
	cmd    *exec.Cmd
	ended  <-chan struct{}
}

const books = "books" // the namespace of all pods

// account is a pod's service account: each has its own.
func (p *pod) account() string { return p.name }

// newPod makes a pod with an application and a sidecar, which start starts.
func newPod(t testing.TB, i *istiod, name, address string) *pod {
	t.Helper()
	p := newPodWith(t, i, name, address, nil, object{"name": name, "image": "shop/" + name,
		"ports":          []object{{"containerPort": 9080}},
		"readinessProbe": object{"httpGet": object{"path": "/ready", "port": 9080}},
	})
	p.redirect(t)
	return p
}

// newGateway makes a pod of nothing but a gateway.
func newGateway(t testing.TB, i *istiod, name, address string) *pod {
	t.Helper()
	return newPodWith(t, i, name, address, object{"inject.istio.io/templates": "gateway"}, object{"name": "istio-proxy", "image": "auto"})
}

// newPodWith makes a pod of a container, as the injector changes it, with what a kubelet mounts.
func newPodWith(t testing.TB, i *istiod, name, address string, annotations, container object) *pod {
	t.Helper()
	p := &pod{node: i.node, name: name, address: netip.MustParseAddr(address), dir: t.TempDir()}
	p.namespace = i.node.sandbox(t, p.address)
	p.as = i.inject(t, object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "namespace": books, "labels": object{"app": name}, "annotations": annotations},
		"spec":     object{"serviceAccountName": name, "containers": []object{container}},
	})
	p.proxy = p.as.findContainer(t, "istio-proxy")
	p.write(t, tokenPath, podToken(name))
	p.write(t, rootsPath, i.roots(t, books))
	p.write(t, "etc/istio/pod/labels", downward(p.as.Metadata.Labels))
	p.write(t, "etc/istio/pod/annotations", downward(p.as.Metadata.Annotations))
	p.write(t, "var/lib/istio/data/.keep", "")
	p.write(t, "hosts", fmt.Sprintf("127.0.0.1 localhost\n%s istiod.istio-system.svc\n", i.node.address))
	return p
}

func (p *pod) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// inMountsScript runs a program with the pod's own /etc/hosts, no other resolver, and the pod's volume in /var/lib/istio/data.
const inMountsScript = `mount --bind hosts /etc/hosts && mount --bind /dev/null /etc/resolv.conf && mount --bind var/lib /var/lib && exec "$@"`

// downward writes a map as the downward API does.
func downward(m map[string]string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		text += fmt.Sprintf("%s=%q\n", name, m[name])
	}
	return text
}

// command is one of the agent's in the injected container, with this machine's Envoy and what a kubelet adds.
func (p *pod) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", inMountsScript, "sh", testenv.Bin(t, "pilotfish-agent")}, args...)...)
	cmd.Dir = p.dir
	cmd.Env = append(p.environment(t, p.proxy), "PATH="+os.Getenv("PATH"), "HOME="+p.dir, "ENVOY_PATH="+testenv.Envoy(t),
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "TERMINATION_MESSAGE_PATH="+p.dir+"/termination-log")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: proxyGroup}}
	return cmd
}

// start starts the injected container, with more in its environment.
func (p *pod) start(t testing.TB, extra ...string) *pod {
	t.Helper()
	p.cmd = p.command(t, arguments(p.proxy, p.environment(t, p.proxy))...)
	p.cmd.Env = append(p.cmd.Env, extra...)
	p.output, p.ended = p.namespace.Start(t, p.cmd)
	return p
}

// waitReady probes the pod's readiness as a kubelet does.
func (p *pod) waitReady(t testing.TB, n *node) {
	t.Helper()
	testenv.Eventually(t, p.name+" is ready", func() error {
		select {
		case <-p.ended:
			t.Fatalf("the agent of %s has ended", p.name)
		default:
		}
		_, err := n.get("http://" + p.address.String() + ":15021/healthz/ready")
		if err != nil {
			why, _ := n.get("http://" + p.address.String() + ":15020/healthz/ready")
			return fmt.Errorf("%w\n%s", err, why)
		}
		return nil
	})
}

// application is the pod's own: it answers with its name and what it saw of the caller.
func (p *pod) application(t testing.TB, answer string) {
	t.Helper()
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s", answer, r.Header.Get("X-Forwarded-Client-Cert"))
	})}
	listener := p.listen(t, "0.0.0.0:9080")
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
}

// podToken is the token that the cluster gave an account.
func podToken(account string) string { return "token-of-" + account }

// accepted checks that Envoy has refused nothing that istiod sent.
func (p *pod) accepted(t testing.TB) {
	t.Helper()
	var state struct {
		Types []struct {
			TypeURL     string
			Acks, Nacks int
			LastError   string
		}
	}
	body, err := p.get("http://127.0.0.1:15020/debug/xdsz")
	if err == nil {
		err = json.Unmarshal(body, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Types) < 3 {
		t.Errorf("the relay knows of few types: %s", body)
	}
	for _, kind := range state.Types {
		if kind.Nacks > 0 || kind.Acks == 0 {
			t.Errorf("%s: %s has accepted %d times, rejected %d times: %s", p.name, kind.TypeURL, kind.Acks, kind.Nacks, body)
		}
	}
}

// envoy is the process of the pod's Envoy.
func (p *pod) envoy(t testing.TB) string {
	t.Helper()
	var state struct{ PID int }
	body, err := p.get("http://127.0.0.1:15020/debug/envoyz")
	if err == nil {
		err = json.Unmarshal(body, &state)
	}
	if err != nil || state.PID == 0 {
		t.Fatalf("which process Envoy is: %v\n%s", err, body)
	}
	return fmt.Sprint(state.PID)
}
