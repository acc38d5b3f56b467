package testcluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"
)

// RunPod creates the pod of a YAML manifest, and writes the status of a pod that is ready and has these addresses. If the
// manifest names no node, the node is "node-1". RunPod creates the node if it does not exist. It returns the pod as stored.
func (c *Cluster) RunPod(t testing.TB, manifest string, addresses ...string) Object {
	t.Helper()
	objects := ParseManifest(t, manifest)
	if len(objects) != 1 {
		t.Fatalf("the manifest has %d objects, want one pod:\n%s", len(objects), manifest)
	}
	pod := objects[0]
	if spec, ok := pod["spec"].(map[string]any); ok && spec["nodeName"] == nil {
		spec["nodeName"] = "node-1"
	}
	c.createNode(t, pod.Text("spec", "nodeName"))
	created, err := c.Create(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return c.SetPodStatus(t, created, true, addresses...)
}

// createNode creates a node unless it exists. The endpoints controller ignores pods without one.
func (c *Cluster) createNode(t testing.TB, name string) {
	t.Helper()
	_, err := c.Create(t.Context(), Object{"apiVersion": "v1", "kind": "Node", "metadata": Object{"name": name, "labels": Object{"kubernetes.io/hostname": name}}})
	if err != nil && !isHTTPStatus(err, http.StatusConflict) {
		t.Fatal(err)
	}
}

// SetPodStatus writes the status of a running pod, as a kubelet would. It returns the pod as stored.
func (c *Cluster) SetPodStatus(t testing.TB, pod Object, ready bool, addresses ...string) Object {
	t.Helper()
	status := Object{"phase": "Running", "startTime": time.Now().UTC().Format(time.RFC3339)}
	var conditions, containers []any
	for name, value := range map[string]bool{"PodScheduled": true, "Initialized": true, "ContainersReady": ready, "Ready": ready} {
		text := map[bool]string{true: "True", false: "False"}[value]
		conditions = append(conditions, Object{"type": name, "status": text})
	}
	list, _ := pod.Get("spec", "containers").([]any)
	for _, item := range list {
		container := Object(item.(map[string]any))
		containers = append(containers, Object{
			"name": container["name"], "image": container["image"], "imageID": "", "ready": ready, "started": true, "restartCount": 0,
			"state": Object{"running": Object{"startedAt": status["startTime"]}},
		})
	}
	status["conditions"], status["containerStatuses"] = conditions, containers
	if len(addresses) > 0 {
		var ips []any
		for _, address := range addresses {
			ips = append(ips, Object{"ip": address})
		}
		status["podIP"], status["podIPs"] = addresses[0], ips
	}
	return c.Patch(t, podPath(pod)+"/status", Object{"status": status})
}

func podPath(pod Object) string {
	return "/api/v1/namespaces/" + pod.Namespace() + "/pods/" + pod.Name()
}

// TokenOptions configures a token of a service account.
type TokenOptions struct {
	Audiences  []string      // default: that of the API server
	Expiration time.Duration // at least 10 minutes; default 1 hour
	Pod        Object        // binds the token to this pod, if set
}

// RequestToken returns a token of a service account, which the API server issues as for a kubelet.
func (c *Cluster) RequestToken(t testing.TB, namespace, account string, options TokenOptions) string {
	t.Helper()
	spec := Object{"audiences": options.Audiences}
	if options.Expiration > 0 {
		spec["expirationSeconds"] = int64(options.Expiration / time.Second)
	}
	if pod := options.Pod; pod != nil {
		spec["boundObjectRef"] = Object{"apiVersion": "v1", "kind": "Pod", "name": pod.Name(), "uid": pod.UID()}
	}
	review := c.mustDo(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", "",
		Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	return review.Text("status", "token")
}

// AuditEvents returns the requests that the API server has logged. The cluster must have an audit policy.
func (c *Cluster) AuditEvents(t testing.TB) (events []Object) {
	t.Helper()
	file, err := os.Open(c.path("audit.log"))
	if errors.Is(err, os.ErrNotExist) && c.options.AuditPolicy != "" {
		return nil // no request so far
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event Object
		if json.Unmarshal(lines.Bytes(), &event) == nil { // the last line may be incomplete
			events = append(events, event)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return events
}
