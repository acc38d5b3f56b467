package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
)

// clusterLive reads pods and accounts from the API server, as a cache without delay.
type clusterLive struct{ *testcluster.Cluster }

func (c clusterLive) read(path string) testcluster.Object {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o, err := c.Do(ctx, "GET", path, "", nil)
	if err != nil || o.Text("metadata", "deletionTimestamp") != "" {
		return nil
	}
	return o
}

func (c clusterLive) FindPod(namespace, name string) (uid, account string, found bool) {
	o := c.read("/api/v1/namespaces/" + namespace + "/pods/" + name)
	return o.UID(), o.Text("spec", "serviceAccountName"), o != nil
}

func (c clusterLive) FindAccount(namespace, name string) (uid string, found bool) {
	o := c.read("/api/v1/namespaces/" + namespace + "/serviceaccounts/" + name)
	return o.UID(), o != nil
}

// newClusterClient returns a client whose connections are closed when the test ends.
func newClusterClient(t testing.TB, kubeconfig string) *Client {
	t.Helper()
	client, err := NewClient(ClientConfig{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.http.Transport) })
	return client
}

// newIdentity opens an Identity of a control plane in a namespace.
func newIdentity(t testing.TB, cluster *testcluster.Cluster, namespace string) *Identity {
	t.Helper()
	client := newClusterClient(t, cluster.Kubeconfig)
	i, err := OpenIdentity(t.Context(), IdentityConfig{Client: client, Namespace: namespace, Live: clusterLive{cluster}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// countReviews makes the identity count its TokenReviews.
func countReviews(i *Identity) *int {
	count, reviews := 0, i.Tokens.(*tokenVerifier).reviews
	post := reviews.post
	reviews.post = func(ctx context.Context, review *authenticationv1.TokenReview) error {
		count++
		return post(ctx, review)
	}
	return &count
}

func runPod(t testing.TB, cluster *testcluster.Cluster, namespace, name, account string) testcluster.Object {
	t.Helper()
	return cluster.RunPod(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  serviceAccountName: %s
  containers: [{name: app, image: example.invalid/app}]
`, name, namespace, account), "10.1.2.3")
}

func TestProjectedTokenIsVerifiedWithTheKeysOfTheAPIServer(t *testing.T) {
	cluster := testcluster.Shared(t)
	namespace := cluster.Namespace(t)
	cluster.Apply(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: reviews, namespace: "+namespace+"}\n")
	pod := runPod(t, cluster, namespace, "reviews-1", "reviews")
	i := newIdentity(t, cluster, namespace)
	reviews := countReviews(i)
	verify := func(token string) (ca.VerifiedToken, error) { return i.Tokens.VerifyToken(t.Context(), token) }
	request := func(account string, options testcluster.TokenOptions) string {
		if options.Audiences == nil {
			options.Audiences = []string{ca.TokenAudience}
		}
		return cluster.RequestToken(t, namespace, account, options)
	}
	bound := request("reviews", testcluster.TokenOptions{Pod: pod})
	got, err := verify(bound)
	if err != nil || got.Namespace != namespace || got.ServiceAccount != "reviews" || !strings.Contains(got.Proof, pod.UID()) {
		t.Errorf("the token of a pod proves %+v, %v", got, err)
	}
	if *reviews != 0 {
		t.Errorf("the token of a live pod caused %d TokenReviews", *reviews)
	}
	if _, err := verify(request("reviews", testcluster.TokenOptions{Pod: pod, Audiences: []string{"vault"}})); err == nil || !strings.Contains(err.Error(), `audience ["vault"]`) {
		t.Errorf("a token for another audience: %v", err)
	}
	if got, err := verify(request("reviews", testcluster.TokenOptions{})); err != nil || got.ServiceAccount != "reviews" || *reviews != 1 {
		t.Errorf("a token without a pod: %+v, %v after %d TokenReviews", got, err, *reviews)
	}
	i.Tokens.(*tokenVerifier).now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if _, err := verify(bound); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("an expired token: %v", err)
	}
	i.Tokens.(*tokenVerifier).now = time.Now

	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace+"/pods/reviews-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := verify(bound); err == nil || !strings.Contains(err.Error(), "does not exist any more") {
		t.Errorf("the token of a deleted pod: %v", err)
	}
	runPod(t, cluster, namespace, "reviews-1", "reviews")
	if _, err := verify(bound); err == nil || !strings.Contains(err.Error(), "does not exist any more") {
		t.Errorf("the token of a deleted pod whose name another pod has: %v", err)
	}
}

func TestTokenOfADeletedAccountIsRefused(t *testing.T) {
	cluster := testcluster.Shared(t)
	namespace := cluster.Namespace(t)
	account := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: reviews, namespace: " + namespace + "}\n"
	cluster.Apply(t, account)
	pod := runPod(t, cluster, namespace, "reviews-1", "reviews")
	i := newIdentity(t, cluster, namespace)
	token := cluster.RequestToken(t, namespace, "reviews", testcluster.TokenOptions{Pod: pod, Audiences: []string{ca.TokenAudience}})
	if _, err := i.Tokens.VerifyToken(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace+"/serviceaccounts/reviews"); err != nil {
		t.Fatal(err)
	}
	cluster.Apply(t, account)
	if got, err := i.Tokens.VerifyToken(t.Context(), token); err == nil || errors.Is(err, ca.ErrUnavailable) {
		t.Errorf("the token of an account that was created again proves %+v, %v", got, err)
	}
}

// startReplicas opens the authorities of several control planes in one namespace at the same time.
func startReplicas(t *testing.T, cluster *testcluster.Cluster, namespace string, count int, options ca.Options) []*ca.Authority {
	t.Helper()
	authorities := make([]*ca.Authority, count)
	var running sync.WaitGroup
	for n := range authorities {
		i := newIdentity(t, cluster, namespace)
		running.Go(func() {
			options := options
			options.PlugIn = i.Material
			var err error
			if authorities[n], err = ca.Open(i.Store, options); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return authorities
}

func TestReplicasStartingConcurrentlyShareOneAuthority(t *testing.T) {
	cluster := testcluster.Shared(t)
	namespace := cluster.Namespace(t)
	replicas := startReplicas(t, cluster, namespace, 6, ca.Options{})
	token, err := replicas[0].IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range replicas[1:] {
		if string(a.RootPEM()) != string(replicas[0].RootPEM()) {
			t.Error("two replicas have different roots")
		}
		if _, err := a.VerifyToken(token); err != nil {
			t.Errorf("two replicas have different token keys: %v", err)
		}
	}
	secret := cluster.Get(t, "/api/v1/namespaces/"+namespace+"/secrets/istio-ca-secret")
	if secret.Text("type") != "istio.io/ca-root" {
		t.Errorf("the Secret has the type %s", secret.Text("type"))
	}
	for _, key := range []string{"ca-cert.pem", "ca-key.pem", "root-cert.pem"} {
		if secret.Text("data", key) == "" {
			t.Errorf("the Secret has no %s", key)
		}
	}
}

func TestReplicasExecuteEachRotationStepOnce(t *testing.T) {
	cluster := testcluster.Shared(t)
	namespace := cluster.Namespace(t)
	const count, steps = 3, 4 // 12 steps are 4 rotations of 3 steps
	replicas := startReplicas(t, cluster, namespace, count, ca.Options{})
	var mu sync.Mutex
	executed := map[ca.RotationStep]int{}
	var running sync.WaitGroup
	for _, a := range replicas {
		running.Go(func() {
			for range steps {
				step, err := a.Rotate(true)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				executed[step]++
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if want := fmt.Sprint(map[ca.RotationStep]int{ca.Announce: steps, ca.Activate: steps, ca.Retire: steps}); fmt.Sprint(executed) != want {
		t.Errorf("the executed steps are %v, want %s", executed, want)
	}
	for _, a := range replicas {
		if _, err := a.Reload(); err != nil {
			t.Error(err)
		}
		if string(a.RootPEM()) != string(replicas[0].RootPEM()) || strings.Count(string(a.RootPEM()), "BEGIN") != 1 {
			t.Errorf("a replica has the roots %s", a.RootPEM())
		}
	}
	secret := cluster.Get(t, "/api/v1/namespaces/"+namespace+"/secrets/istio-ca-secret")
	for _, key := range []string{nextCertKey, nextKeyKey, previousCertKey, previousKeyKey} {
		if secret.Text("data", key) != "" {
			t.Errorf("the Secret still has %s", key)
		}
	}
}
