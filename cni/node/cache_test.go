package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func pod(name, uid string) agentapi.Pod {
	return agentapi.Pod{
		Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: uid},
		Spec:     agentapi.PodSpec{NodeName: "n1", Containers: []agentapi.Container{{Name: "app", Env: []agentapi.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}}}},
	}
}

// events records the changes that a cache reports.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(x kube.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s %s %s", x.Type, x.Pod.Metadata.Name, x.Pod.Metadata.UID))
}

func (e *events) want(t *testing.T, want ...string) {
	t.Helper()
	testenv.Eventually(t, "the events", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if got := strings.Join(e.all, ", "); got != strings.Join(want, ", ") {
			return fmt.Errorf("reported %s", got)
		}
		return nil
	})
}

// run runs a cache of the server's pods until the test ends.
func run(t *testing.T, server *kubetest.Server, changed func(kube.Event)) *Cache {
	t.Helper()
	c := NewCache(CacheConfig{API: server.Client(t), Node: "n1", MinWait: time.Millisecond, MaxWait: 5 * time.Millisecond, Changed: changed, Logger: quiet})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func synced(t *testing.T, c *Cache) {
	t.Helper()
	testenv.Eventually(t, "the list", func() error {
		if h := c.Health(); !h.OK {
			return errors.New(h.Reason)
		}
		return nil
	})
}

func TestCacheFollowsThePodsOfItsNode(t *testing.T) {
	server, seen := kubetest.New(t), &events{}
	server.Put(pod("a", "1"))
	other := pod("elsewhere", "9")
	other.Spec.NodeName = "n2"
	server.Put(other)
	c := run(t, server, seen.add)
	seen.want(t, "ADDED a 1")

	server.Put(pod("b", "2"))
	seen.want(t, "ADDED a 1", "ADDED b 2")

	// During the interruption a new pod of the same name replaces the pod, and the store discards the events.
	server.Break(http.StatusServiceUnavailable)
	testenv.Eventually(t, "the loss", func() error {
		if c.Lag() == 0 {
			return errors.New("not seen")
		}
		return nil
	})
	if h := c.Health(); !h.OK || h.Reason == "" || h.Remedy == "" {
		t.Errorf("during an interruption, Health must be OK with a reason: %+v", h)
	}
	server.Remove("shop", "a")
	server.Put(pod("a", "3"))
	server.ExpireEvents()
	server.Break(0)
	seen.want(t, "ADDED a 1", "ADDED b 2", "DELETED a 1", "ADDED a 3")
	if c.Lag() != 0 {
		t.Error("the cache does not report that the watch works again")
	}
	server.Remove("shop", "b")
	seen.want(t, "ADDED a 1", "ADDED b 2", "DELETED a 1", "ADDED a 3", "DELETED b 2")
}

func TestCachedPodIsServedWithoutTheAPIServer(t *testing.T) {
	server := kubetest.New(t)
	server.Put(pod("a", "1"))
	c := run(t, server, nil)
	synced(t, c)
	server.Break(http.StatusInternalServerError)
	p, err := c.Pod(t.Context(), "shop", "a", "1")
	if err != nil || p.Metadata.UID != "1" {
		t.Fatalf("%v, %v", p, err)
	}
	if p, err := c.Pod(t.Context(), "shop", "a", ""); err == nil || errors.Is(err, ErrNoSuchPod) {
		t.Errorf("Pod without a UID: %v, %v; the cached pod may be an earlier pod of the same name", p, err)
	}
	if _, err := c.Pod(t.Context(), "shop", "b", "2"); err == nil || errors.Is(err, ErrNoSuchPod) {
		t.Errorf("Pod of an uncached pod: %v; while the API server fails, the error must not be ErrNoSuchPod", err)
	}
}

func TestPodWithAnotherUIDIsNotReturned(t *testing.T) {
	server := kubetest.New(t)
	server.Put(pod("a", "1"))
	c := NewCache(CacheConfig{API: server.Client(t), Node: "n1", Logger: quiet})
	c.apply(kube.Event{Type: kube.Added, Pod: &agentapi.Pod{Metadata: agentapi.Metadata{Name: "a", Namespace: "shop", UID: "0"}}})
	for uid, want := range map[string]string{"1": "1", "": "1", "2": ""} {
		p, err := c.Pod(t.Context(), "shop", "a", uid)
		switch {
		case want == "" && !errors.Is(err, ErrNoSuchPod):
			t.Errorf("UID %q: %v, %v", uid, p, err)
		case want != "" && (err != nil || p.Metadata.UID != want):
			t.Errorf("UID %q: %v, %v", uid, p, err)
		}
	}
}

func TestStaticPodIsFoundByTheKubeletsUID(t *testing.T) {
	p := pod("a", "of-the-mirror")
	p.Metadata.Annotations = map[string]string{"kubernetes.io/config.mirror": "of-the-kubelet"}
	if !capture.HasUID(trimPod(&p), "of-the-kubelet") || !capture.HasUID(&p, "of-the-mirror") || capture.HasUID(&p, "x") {
		t.Error("the UID of a static pod matches another pod")
	}
}

func TestCacheStoresNoSecretsOfApplications(t *testing.T) {
	p := pod("a", "1")
	p.Spec.Containers = append(p.Spec.Containers, agentapi.Container{Name: "istio-proxy", Env: []agentapi.EnvVar{{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}}})
	p.Metadata.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "traffic.sidecar.istio.io/includeInboundPorts": "80",
	}
	small := trimPod(&p)
	if text := fmt.Sprintf("%+v", small); strings.Contains(text, "hunter2") || !strings.Contains(text, "ISTIO_META_DNS_CAPTURE") || !strings.Contains(text, "includeInboundPorts") {
		t.Error(text)
	}
	if len(p.Spec.Containers[0].Env) == 0 {
		t.Error("trimPod changed its argument")
	}
}
