package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testcluster.Tests{M: m}.Run()) }

// process is a program that ends with the test.
type process struct {
	output *testenv.Buffer
	stop   func()
}

func startProcess(t testing.TB, cmd *exec.Cmd) process {
	t.Helper()
	p := process{output: &testenv.Buffer{}}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }() // the tests read its output
	p.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(cmd.Path), p.output.String())
		}
	})
	return p
}

// plane is a control plane that reads a cluster. address is its IP address.
type plane struct {
	process
	address, audit string
}

func startPlane(t testing.TB, cluster *testcluster.Cluster, systemNamespace, address string) plane {
	t.Helper()
	p := plane{address: address, audit: filepath.Join(t.TempDir(), "audit.log")}
	p.process = startProcess(t, exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--kubernetes", "--kubeconfig", cluster.Kubeconfig,
		"--system-namespace", systemNamespace, "--address", address, "--state-dir", filepath.Join(t.TempDir(), "state"), "--ca-audit-log", p.audit))
	return p
}

// startAgent starts the agent of a pod as its sidecar's container would, with a token that the API server issued and the
// roots in the ConfigMap of the namespace.
func startAgent(t testing.TB, p plane, pod testcluster.Object, token, roots string) process {
	t.Helper()
	dir, proxy := t.TempDir(), pod.Text("status", "podIP")
	for path, text := range map[string]string{
		"var/run/secrets/tokens/istio-token":        token,
		"var/run/secrets/istio/root-cert.pem":       roots,
		"etc/istio/pod/labels":                      "app=\"reviews\"\n",
		"var/run/secrets/workload-spiffe-uds/.keep": "",
	} {
		file := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	secure := p.address + ":15012"
	proxyConfig, err := json.Marshal(map[string]any{"discoveryAddress": secure, "concurrency": 1})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testenv.Bin(t, "pilotfish-agent"), "proxy", "sidecar")
	cmd.Dir = dir
	for name, value := range map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": dir, "INSTANCE_IP": proxy, "POD_NAME": pod.Name(), "POD_NAMESPACE": pod.Namespace(),
		"SERVICE_ACCOUNT": pod.Text("spec", "serviceAccountName"), "PROXY_CONFIG": string(proxyConfig), "CA_ADDR": secure,
		"ENVOY_PATH": testenv.Envoy(t), "PROXY_BIND_ADDRESS": proxy, "ISTIO_META_INTERCEPTION_MODE": "NONE", "ISTIO_META_CLUSTER_ID": "Kubernetes",
	} {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return startProcess(t, cmd)
}

// get returns the body of a response with status 200.
func get(url string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", resp.StatusCode, body)
	}
	return string(body), err
}
