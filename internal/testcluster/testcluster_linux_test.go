package testcluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// startedByTest is the environment variable of a process that starts a cluster and then waits to be killed.
const startedByTest = "PILOTFISH_TEST_CLUSTER_CHILD"

func TestMain(m *testing.M) { goleak.VerifyTestMain(Tests{M: m}) }

const webPod = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}, namespace: NAMESPACE}
spec: {containers: [{name: app, image: web, ports: [{name: http, containerPort: 8080}]}]}
`

func inNamespace(manifest, namespace string) string {
	return strings.ReplaceAll(manifest, "NAMESPACE", namespace)
}

func TestEndpointsFollowThePodsOfAService(t *testing.T) {
	c := Shared(t)
	ns := c.Namespace(t)
	c.Apply(t, inNamespace(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
`, ns))
	pod := c.RunPod(t, inNamespace(webPod, ns), "10.0.0.7")
	slices := "/apis/discovery.k8s.io/v1/namespaces/" + ns + "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb"
	isReady := func(want bool) func([]Object) error {
		return func(slices []Object) error {
			text, _ := json.Marshal(slices)
			for _, part := range []string{`"10.0.0.7"`, fmt.Sprintf(`"ready":%t`, want), `"port":8080`, pod.UID()} {
				if !bytes.Contains(text, []byte(part)) {
					return fmt.Errorf("no %s in %s", part, text)
				}
			}
			return nil
		}
	}
	c.WaitForList(t, "a ready endpoint", slices, isReady(true))
	c.SetPodStatus(t, pod, false, "10.0.0.7")
	c.WaitForList(t, "an unready endpoint", slices, isReady(false))
	if err := c.Delete(t.Context(), podPath(pod)); err != nil {
		t.Fatal(err)
	}
	c.WaitForList(t, "no endpoint", slices, func(slices []Object) error {
		if text, _ := json.Marshal(slices); bytes.Contains(text, []byte(pod.UID())) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

func TestControllersCreateThePodsOfADeployment(t *testing.T) {
	c := Shared(t)
	ns := c.Namespace(t)
	c.Apply(t, inNamespace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: web}]}
`, ns))
	c.WaitForList(t, "two pods", "/api/v1/namespaces/"+ns+"/pods", func(pods []Object) error {
		if len(pods) != 2 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// TestWebhookByURLChangesPods: the API server calls admission webhooks of the test's process.
func TestWebhookByURLChangesPods(t *testing.T) {
	c := Shared(t)
	ns := c.Namespace(t, "mutated", "yes")
	url, roots := serveWebhook(t, `[{"op":"add","path":"/metadata/labels/mutated","value":"yes"}]`)
	config, err := c.Create(t.Context(), Object{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": Object{"generateName": "test-"},
		"webhooks": []any{Object{
			"name": "pods.pilotfish.test", "sideEffects": "None", "admissionReviewVersions": []string{"v1"}, "failurePolicy": "Fail",
			"namespaceSelector": Object{"matchLabels": Object{"kubernetes.io/metadata.name": ns}},
			"clientConfig":      Object{"url": url, "caBundle": roots},
			"rules":             []any{Object{"operations": []string{"CREATE"}, "apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"pods"}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Delete(context.Background(), "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+config.Name())
	})
	// The API server learns about the webhook with a delay.
	testenv.Eventually(t, "a changed pod", func() error {
		pod := ParseManifest(t, inNamespace(webPod, ns))[0]
		pod["metadata"].(map[string]any)["name"] = nil
		pod["metadata"].(map[string]any)["generateName"] = "web-"
		created, err := c.Create(t.Context(), pod)
		if err == nil && created.Text("metadata", "labels", "mutated") != "yes" {
			err = fmt.Errorf("labels of the pod: %v", created.Get("metadata", "labels"))
		}
		return err
	})
}

// TestListsAreStreamed: a watch can begin with the existing objects, which reflectors prefer to lists.
func TestListsAreStreamed(t *testing.T) {
	c := Shared(t)
	ns := c.Namespace(t)
	resp, err := c.send(t.Context(), http.MethodGet, "/api/v1/namespaces/"+ns+"/serviceaccounts?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"+
		"allowWatchBookmarks=true&timeoutSeconds=60", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	var types []string
	for {
		var event Object
		if err := events.Decode(&event); err != nil {
			t.Fatalf("after %v: %v", types, err)
		}
		types = append(types, event.Text("type"))
		if event.Text("object", "metadata", "annotations", "k8s.io/initial-events-end") == "true" {
			break
		}
	}
	if got := strings.Join(types, " "); got != "ADDED BOOKMARK" {
		t.Errorf("events: %s", got)
	}
}

func TestTokenIsBoundToItsPod(t *testing.T) {
	c := Shared(t)
	ns := c.Namespace(t)
	pod := c.RunPod(t, inNamespace(webPod, ns), "10.0.0.8")
	token := c.RequestToken(t, ns, "default", TokenOptions{Audiences: []string{"istio-ca"}, Pod: pod})
	review := func() Object {
		answer, err := c.Create(t.Context(), Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
			"spec": Object{"token": token, "audiences": []string{"istio-ca"}}})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if r := review(); r.Get("status", "authenticated") != true || r.Text("status", "user", "username") != "system:serviceaccount:"+ns+":default" {
		t.Errorf("status: %v", r["status"])
	}
	if err := c.Delete(t.Context(), podPath(pod)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a refused token", func() error {
		if r := review(); r.Get("status", "authenticated") == true {
			return errors.New("the API server accepts the token of a deleted pod")
		}
		return nil
	})
}

// TestRestartLogsRequestsAndExpiresOldVersions covers what tests of a lost API server need.
func TestRestartLogsRequestsAndExpiresOldVersions(t *testing.T) {
	c := Start(t, Options{AuditPolicy: `
apiVersion: audit.k8s.io/v1
kind: Policy
rules: [{level: Metadata, resources: [{group: "", resources: [configmaps]}]}]
`})
	created := c.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: before}, data: {a: b}}")[0]
	version := created.Text("metadata", "resourceVersion")
	c.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: before}, data: {a: c}}")
	c.Kill(t, APIServer)
	if _, err := c.Do(t.Context(), http.MethodGet, "/readyz", "", nil); err == nil {
		t.Error("the API server serves after it was killed")
	}
	c.Restart(t, APIServer)
	if got := c.Get(t, "/api/v1/namespaces/default/configmaps/before").Text("data", "a"); got != "c" {
		t.Errorf("after the restart: %q", got)
	}
	event, err := c.Do(t.Context(), http.MethodGet, "/api/v1/configmaps?watch=true&timeoutSeconds=1&resourceVersion="+version, "", nil)
	if event.Get("object", "code") != float64(http.StatusGone) {
		t.Errorf("a watch from before the restart: %v %v", event, err)
	}
	for _, event := range c.AuditEvents(t) {
		if event.Text("objectRef", "name") == "before" && event.Text("verb") == "patch" && event.Text("user", "username") == "admin" {
			return
		}
	}
	t.Errorf("the audit log has no patch of the ConfigMap")
}

func TestStopLeavesNothing(t *testing.T) {
	var dir, url string
	t.Run("runs", func(t *testing.T) {
		c := Start(t, Options{})
		dir, url = c.dir, c.URL
		if found := findProcesses(t, dir); len(found) < 3 {
			t.Errorf("processes: %v", found)
		}
	})
	if dir == "" {
		t.Skip("no cluster was started")
	}
	checkNothingRemains(t, dir, url)
}

func TestKilledTestLeavesNothing(t *testing.T) {
	if os.Getenv(startedByTest) != "" {
		c := Shared(t)
		fmt.Printf("\ncluster %s %s\n", c.dir, c.URL)
		select {}
	}
	programs(t)
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), startedByTest+"=yes")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var dir, url string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "cluster %s %s", &dir, &url); n == 2 {
			break
		}
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if url == "" {
		t.Fatal("the child started no cluster")
	}
	checkNothingRemains(t, dir, url)
}

func checkNothingRemains(t *testing.T, dir, url string) {
	t.Helper()
	testenv.Eventually(t, "no process", func() error {
		if found := findProcesses(t, dir); len(found) > 0 {
			return fmt.Errorf("processes: %v", found)
		}
		return nil
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dir, err)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(url, "https://")); err == nil {
		_ = conn.Close()
		t.Errorf("%s accepts connections", url)
	}
}

// findProcesses returns the processes whose command line contains a text.
func findProcesses(t *testing.T, text string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(text)) {
			found = append(found, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}
