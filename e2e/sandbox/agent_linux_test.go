package sandbox

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// agent is a node agent that knows the registered pods.
type agent struct {
	mu      sync.Mutex
	pods    map[string]*agentapi.Pod
	results []agentapi.Result
}

func (n *node) startAgent(t *testing.T) *agent {
	t.Helper()
	a := &agent{pods: map[string]*agentapi.Pod{}}
	l, err := net.Listen("unix", filepath.Join(n.dir, "run", agentapi.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	server.Start()
	t.Cleanup(server.Close)
	return a
}

func (a *agent) knows(pods ...*agentapi.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range pods {
		a.pods[p.Metadata.Name] = p
	}
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch p := a.pods[r.FormValue("name")]; {
	case r.URL.Path == agentapi.ResultPath:
		var result agentapi.Result
		_ = json.NewDecoder(r.Body).Decode(&result)
		a.results = append(a.results, result)
	case r.URL.Path != agentapi.PodPath:
	case p == nil:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(agentapi.Refusal{Error: "there is no such pod"})
	default:
		_ = json.NewEncoder(w).Encode(p)
	}
}

// meshPod returns a pod with the annotations of a sidecar injector.
func meshPod(name string, annotations ...string) *agentapi.Pod {
	p := plainPod(name)
	p.Spec.Containers = append(p.Spec.Containers, agentapi.Container{Name: "istio-proxy", Args: []string{"proxy", "sidecar"}})
	p.Metadata.Annotations = map[string]string{"sidecar.istio.io/status": "{}"}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Metadata.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

func plainPod(name string) *agentapi.Pod {
	return &agentapi.Pod{
		Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: "uid-" + name},
		Spec:     agentapi.PodSpec{Containers: []agentapi.Container{{Name: "app"}}},
	}
}
