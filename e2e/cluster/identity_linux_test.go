package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const shop = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reviews, namespace: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: %[1]s}
spec:
  selector: {app: ratings}
  ports: [{name: http, port: 9080}]
`

const reviewsPod = `
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: %s, labels: {app: reviews}}
spec:
  serviceAccountName: reviews
  containers: [{name: app, image: example.invalid/app}]
`

func TestAgentWithAProjectedTokenIsConfiguredFromTheCluster(t *testing.T) {
	cluster := testcluster.Shared(t)
	system, namespace := cluster.Namespace(t), cluster.Namespace(t)
	cluster.Apply(t, fmt.Sprintf(shop, namespace))
	pod := cluster.RunPod(t, fmt.Sprintf(reviewsPod, namespace), "127.214.1.2")
	p := startPlane(t, cluster, system, "127.214.1.1")
	roots := cluster.WaitForObject(t, "roots", "/api/v1/namespaces/"+namespace+"/configmaps/istio-ca-root-cert", func(o testcluster.Object) error {
		if o == nil {
			return errors.New("they do not exist")
		}
		return nil
	}).Text("data", "root-cert.pem")
	token := cluster.RequestToken(t, namespace, "reviews", testcluster.TokenOptions{Pod: pod, Audiences: []string{"istio-ca"}})

	agent := startAgent(t, p, pod, token, roots)
	testenv.Eventually(t, "the sidecar is ready", func() error {
		_, err := get("http://127.214.1.2:15021/healthz/ready")
		return err
	})
	clusters, err := get("http://127.214.1.2:15000/clusters")
	if want := "outbound|9080||ratings." + namespace + ".svc.cluster.local"; err != nil || !strings.Contains(clusters, want) {
		t.Errorf("Envoy has no cluster %s: %v, %s", want, err, clusters)
	}
	certificates, err := get("http://127.214.1.2:15000/certs")
	if want := "spiffe://cluster.local/ns/" + namespace + "/sa/reviews"; err != nil || !strings.Contains(certificates, want) {
		t.Errorf("Envoy has no certificate for %s: %v, %s", want, err, certificates)
	}
	audit, err := os.ReadFile(p.audit)
	if want := "token of pod " + namespace + "/reviews-1 (" + pod.UID() + ")"; err != nil || !strings.Contains(string(audit), want) || strings.Contains(string(audit), "TokenReview") {
		t.Errorf("the audit log lacks %q: %v, %s", want, err, audit)
	}
	agent.stop()

	// The agent of another pod presents the token of a deleted pod.
	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace+"/pods/reviews-1"); err != nil {
		t.Fatal(err)
	}
	refused := startAgent(t, p, pod, token, roots)
	testenv.Eventually(t, "the agent logs why its token is refused", func() error {
		if want := "the pod " + namespace + "/reviews-1 with the UID " + pod.UID() + ", or its service account, does not exist any more"; !strings.Contains(refused.output.String(), want) {
			return errors.New("it does not")
		}
		return nil
	})
	refused.stop() // both agents have the pod's address
	foreign := cluster.RequestToken(t, namespace, "reviews", testcluster.TokenOptions{Audiences: []string{"vault"}})
	refused = startAgent(t, p, pod, foreign, roots)
	testenv.Eventually(t, "the agent logs that the audience is wrong", func() error {
		if !strings.Contains(refused.output.String(), "vault") || !strings.Contains(refused.output.String(), "istio-ca") {
			return errors.New("it does not")
		}
		return nil
	})
}
