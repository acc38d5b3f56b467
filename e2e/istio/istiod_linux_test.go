package istio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// istiodBinary is the control plane that scripts/istiod.sh has built into the cache.
func istiodBinary(t testing.TB) string {
	t.Helper()
	path, err := exec.Command(filepath.Join(testenv.Root(), "scripts", "istiod.sh"), "--print").Output()
	if err != nil {
		t.Fatalf("where istiod is: %v", err)
	}
	binary := string(path[:max(0, len(path)-1)])
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("istiod is not built (%v): run `make istiod`", err)
	}
	return binary
}

// stockEnvoy are the features by which istiod sends nothing that only Istio's own build of Envoy has.
var stockEnvoy = []string{"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false"}

// istiod is Istio's control plane, with the Kubernetes API that it knows.
type istiod struct {
	node *node
	kube *kube
	dir  string
	// mesh is its MeshConfig. environment overrides its usual environment.
	mesh        string
	environment []string

	output *testenv.Buffer
	cmd    *exec.Cmd
	ended  <-chan struct{}
}

// newIstiod starts the control plane on a node, with policies in its configuration's directory and with more in its
// environment.
func newIstiod(t testing.TB, n *node, k *kube, policies string, environment ...string) *istiod {
	t.Helper()
	i := &istiod{node: n, kube: k, dir: t.TempDir(), environment: environment}
	k.serve(t, n.listen(t, n.address.String()+":6443"))
	i.write(t, "kubeconfig", fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "http://%s:6443"}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {}}]
current-context: test
`, n.address))
	i.mesh = fmt.Sprintf("configSources: [{address: \"fs://%s/policies\"}]\naccessLogFile: /dev/stdout\n", i.dir)
	i.write(t, "mesh.yaml", i.mesh)
	i.write(t, "policies/all.yaml", policies)
	i.layOutInjector(t)
	i.start(t)
	return i
}

// write replaces a file of its directory in one step.
func (i *istiod) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(i.dir, name)
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(filepath.Join(i.dir, ".new"), []byte(text), 0o600),
		os.Rename(filepath.Join(i.dir, ".new"), path)); err != nil {
		t.Fatal(err)
	}
}

func (i *istiod) start(t testing.TB) {
	t.Helper()
	i.cmd = exec.Command(istiodBinary(t), "discovery", "--meshConfig", "mesh.yaml", "--kubeconfig", "kubeconfig",
		"--httpsAddr", "", "--ctrlz_port", "0", "--log_output_level", "default:error,ads:info,delta:info")
	i.cmd.Dir = i.dir
	i.cmd.Env = append(slices.Clone(stockEnvoy), "POD_NAME=istiod", "POD_NAMESPACE=istio-system", "HOME="+i.dir, "PATH="+os.Getenv("PATH"),
		"ISTIO_KUBE_CLIENT_CONTENT_TYPE=json", "ENABLE_LEADER_ELECTION=false", "PILOT_ENABLE_GATEWAY_API=false")
	i.cmd.Env = append(i.cmd.Env, i.environment...)
	i.output, i.ended = i.node.Start(t, i.cmd)
	testenv.Eventually(t, "istiod is ready", func() error {
		select {
		case <-i.ended:
			t.Fatal("istiod has ended")
		default:
		}
		_, err := i.node.get("http://127.0.0.1:8080/ready")
		return err
	})
}

// roots returns the root certificates that istiod publishes in a namespace for its pods.
func (i *istiod) roots(t testing.TB, namespace string) (roots string) {
	t.Helper()
	testenv.Eventually(t, "istiod writes its roots for the pods", func() error {
		configMap := i.kube.created("/api/v1/namespaces/" + namespace + "/configmaps/istio-ca-root-cert")
		data, _ := configMap["data"].(object)
		roots, _ = data["root-cert.pem"].(string)
		if roots == "" {
			return fmt.Errorf("the config map is %v", configMap)
		}
		return nil
	})
	return roots
}

// waitSynced checks that istiod knows the proxy to have accepted all that it was sent last.
func (i *istiod) waitSynced(t testing.TB, proxy string) {
	t.Helper()
	testenv.Eventually(t, "istiod counts "+proxy+" as synced", func() error {
		var clients []map[string]any
		i.debug(t, "syncz", &clients)
		for _, client := range clients {
			if client["proxy"] != proxy {
				continue
			}
			for _, kind := range []string{"cluster", "listener", "route", "endpoint"} {
				if sent := client[kind+"_sent"]; sent == nil || sent != client[kind+"_acked"] {
					return fmt.Errorf("%s: %v", kind, client)
				}
			}
			return nil
		}
		return fmt.Errorf("it is not among %v", clients)
	})
}

// debug reads one of istiod's debug pages.
func (i *istiod) debug(t testing.TB, page string, into any) {
	t.Helper()
	body, err := i.node.get("http://127.0.0.1:15014/debug/" + page)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatalf("istiod's %s: %v\n%s", page, err, body)
	}
}

// get requests a URL from within the namespace. Any status but 200 is an error.
func (n *namespace) get(url string, headers ...string) ([]byte, error) {
	code, body, err := n.request(url, headers...)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %d: %s", url, code, body)
	}
	return body, err
}

// request requests a URL from within the namespace. The URL's host must be an IP address; a header "Host" overrides it.
func (n *namespace) request(url string, headers ...string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	client := http.Client{Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
