package kube

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
)

// publisher is a rootsPublisher of one replica.
type publisher struct {
	*rootsPublisher
	roots   atomic.Pointer[string]
	leading atomic.Bool
	stop    func()
}

func startPublisher(t *testing.T, cluster *testcluster.Cluster, roots string, leader bool) *publisher {
	t.Helper()
	core, err := newClusterClient(t, cluster.Kubeconfig).REST(corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	p := &publisher{}
	p.roots.Store(&roots)
	p.leading.Store(leader)
	p.rootsPublisher = newRootsPublisher(core, p.leading.Load, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, func() []byte { return []byte(*p.roots.Load()) })
	}()
	p.stop = func() { cancel(); <-done }
	t.Cleanup(p.stop)
	return p
}

func rootsPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps/" + rootsMapName
}

func waitForRoots(t *testing.T, cluster *testcluster.Cluster, namespace, want string) testcluster.Object {
	t.Helper()
	return cluster.WaitForObject(t, "roots "+want, rootsPath(namespace), func(o testcluster.Object) error {
		if got := o.Text("data", rootsMapKey); got != want {
			return fmt.Errorf("the ConfigMap contains %q", got)
		}
		return nil
	})
}

func TestRootsOfNamespaces(t *testing.T) {
	cluster := testcluster.Start(t, testcluster.Options{AuditPolicy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{resources: [configmaps]}], omitStages: [RequestReceived]}]\n"})
	t.Run("each namespace has the roots", func(t *testing.T) { checkRootsOfEachNamespace(t, cluster) })
	t.Run("a terminating namespace receives none", func(t *testing.T) { checkTerminatingNamespace(t, cluster) })
}

func checkRootsOfEachNamespace(t *testing.T, cluster *testcluster.Cluster) {
	existing := cluster.Namespace(t)
	cluster.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %s, namespace: %s, labels: {team: a}}
data: {root-cert.pem: old, extra: "1"}
`, rootsMapName, existing))
	follower := startPublisher(t, cluster, "one", false)
	created := cluster.Namespace(t)
	stored := waitForRoots(t, cluster, created, "one")
	if stored.Text("metadata", "labels", "istio.io/config") != "true" {
		t.Errorf("the ConfigMap's labels are %v", stored.Get("metadata", "labels"))
	}
	waitForRoots(t, cluster, "kube-system", "one")
	if err := cluster.Delete(t.Context(), rootsPath(created)); err != nil {
		t.Fatal(err)
	}
	waitForRoots(t, cluster, created, "one")

	// Only the leader changes the ConfigMap that another control plane created.
	waitForRoots(t, cluster, existing, "old")
	follower.leading.Store(true)
	follower.PublishAll()
	changed := waitForRoots(t, cluster, existing, "one")
	if changed.Text("data", "extra") != "1" || changed.Text("metadata", "labels", "team") != "a" {
		t.Errorf("other keys and labels were changed: %v", changed)
	}
	next := "two"
	follower.roots.Store(&next)
	for _, namespace := range []string{existing, created, "kube-system", "default"} {
		waitForRoots(t, cluster, namespace, "two")
	}
	for _, namespace := range []string{"kube-public", "kube-node-lease"} {
		if _, err := cluster.Do(t.Context(), "GET", rootsPath(namespace), "", nil); !testcluster.IsNotFound(err) {
			t.Errorf("%s has a ConfigMap: %v", namespace, err)
		}
	}
}

// checkTerminatingNamespace: a terminating namespace accepts no objects. The publisher must not try to create the
// ConfigMap that the namespace controller deletes.
func checkTerminatingNamespace(t *testing.T, cluster *testcluster.Cluster) {
	startPublisher(t, cluster, "one", true)
	namespace := cluster.Namespace(t)
	waitForRoots(t, cluster, namespace, "one")
	// The finalizer of a ConfigMap delays the deletion of the namespace.
	cluster.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: blocks, namespace: "+namespace+", finalizers: [example.com/test]}\n")
	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace); err != nil {
		t.Fatal(err)
	}
	cluster.WaitForObject(t, "deleted roots", rootsPath(namespace), func(o testcluster.Object) error {
		if o != nil {
			return fmt.Errorf("the ConfigMap exists")
		}
		return nil
	})
	other := cluster.Namespace(t) // the publisher processes changes in order
	waitForRoots(t, cluster, other, "one")
	cluster.Patch(t, "/api/v1/namespaces/"+namespace+"/configmaps/blocks", testcluster.Object{"metadata": testcluster.Object{"finalizers": nil}})
	creates := 0
	for _, event := range cluster.AuditEvents(t) {
		agent := event.Text("userAgent")
		if event.Text("verb") == "create" && event.Text("objectRef", "namespace") == namespace && strings.HasPrefix(agent, "pilotfish-control-plane/") {
			creates++
		}
	}
	if creates > 2 { // the deletion of the ConfigMap may be known before that of the namespace
		t.Errorf("the publisher tried to create the ConfigMap of the terminating namespace %d times, want at most 2", creates)
	}
}
