package istio

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	webAddress      = "10.157.0.11"
	reviewsAddress  = "10.157.0.12"
	reviewsService  = "10.96.0.10"
	gatewayAddress  = "10.157.0.13"
	waypointAddress = "10.157.0.14"
)

// cluster is what Kubernetes knows: two pods, and a service of one of them.
func cluster() *kube {
	return &kube{
		tokens: map[string]string{podToken("web"): "books:web", podToken("reviews"): "books:reviews", podToken("gateway"): "books:gateway", podToken("waypoint"): "books:waypoint"},
		lists: map[string][]object{
			"namespaces": {{"metadata": object{"name": "books", "uid": "1"}}, {"metadata": object{"name": "istio-system", "uid": "2"}}},
			"pods":       {podObject("web", webAddress), podObject("reviews", reviewsAddress), podObject("gateway", gatewayAddress), podObject("waypoint", waypointAddress)},
			"services": {{
				"metadata": object{"name": "reviews", "namespace": "books", "uid": "3"},
				"spec": object{"clusterIP": reviewsService, "selector": object{"app": "reviews"},
					"ports": []object{{"name": "http", "port": 9080, "targetPort": 9080, "protocol": "TCP"}}},
			}},
			"endpointslices": {{
				"metadata":    object{"name": "reviews-1", "namespace": "books", "uid": "4", "labels": object{"kubernetes.io/service-name": "reviews"}},
				"addressType": "IPv4",
				"ports":       []object{{"name": "http", "port": 9080, "protocol": "TCP"}},
				"endpoints": []object{{"addresses": []string{reviewsAddress}, "conditions": object{"ready": true},
					"targetRef": object{"kind": "Pod", "namespace": "books", "name": "reviews"}}},
			}},
		},
	}
}

func podObject(name, address string) object {
	return object{
		"metadata": object{"name": name, "namespace": "books", "uid": "pod-" + name, "labels": object{
			"app": name, "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": name}},
		"spec":   object{"serviceAccountName": name, "nodeName": "node-1"},
		"status": object{"phase": "Running", "podIP": address, "podIPs": []object{{"ip": address}}, "conditions": []object{{"type": "Ready", "status": "True"}}},
	}
}

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

// mesh is two pods of a namespace with a control plane.
type mesh struct {
	node         *node
	plane        *istiod
	web, reviews *pod
}

// newMesh starts both pods, each with more in its environment, and waits until they are ready.
func newMesh(t testing.TB, policies string, environment ...string) *mesh {
	t.Helper()
	return newMeshWith(t, cluster(), policies, environment...)
}

func newMeshWith(t testing.TB, known *kube, policies string, environment ...string) *mesh {
	t.Helper()
	m := &mesh{node: newNode(t, "10.157.0.1")}
	m.plane = newIstiod(t, m.node, known, policies)
	m.web = newPod(t, m.plane, "web", webAddress).start(t, environment...)
	m.reviews = newPod(t, m.plane, "reviews", reviewsAddress).start(t, environment...)
	m.reviews.application(t, "reviews")
	m.web.waitReady(t, m.node)
	m.reviews.waitReady(t, m.node)
	return m
}

// requestReviews sends a request from the pod's application to the service's address, without knowledge of a proxy.
func (p *pod) requestReviews(headers ...string) (int, string, error) {
	code, body, err := p.request("http://"+reviewsService+":9080/", append([]string{"Host", "reviews:9080"}, headers...)...)
	return code, string(body), err
}

// waitAnswer waits until the pod gets the answer: a code, and something in the body.
func (p *pod) waitAnswer(t testing.TB, code int, body string, headers ...string) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%s gets %d %q for %q", p.name, code, body, headers), func() error {
		gotCode, gotBody, err := p.requestReviews(headers...)
		if err != nil || gotCode != code || !strings.Contains(gotBody, body) {
			return fmt.Errorf("%d %q, %v", gotCode, gotBody, err)
		}
		return nil
	})
}

func TestPodsOfAnIstioMeshTalk(t *testing.T) {
	t.Parallel()
	for name, environment := range map[string][]string{
		"delta":                 nil,
		"SotW":                  {"ISTIO_DELTA_XDS=false"},
		"elliptic curves":       {"ECC_SIGNATURE_ALGORITHM=ECDSA"},
		testenv.MidEnvoyVersion: {"ENVOY_PATH=" + testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "ENVOY_ADVISORY_WARNING=false"},
		testenv.OldEnvoyVersion: {"ENVOY_PATH=" + testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "ENVOY_ADVISORY_WARNING=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, strict, environment...)
			m.web.waitAnswer(t, http.StatusOK, "URI=spiffe://cluster.local/ns/books/sa/web")
			m.web.accepted(t)
			m.reviews.accepted(t)
			for _, p := range []*pod{m.web, m.reviews} {
				if output := p.output.String(); hasWarnings(output) {
					t.Errorf("%s warns of something:\n%s", p.name, output)
				}
			}
			m.plane.waitSynced(t, "web.books")
			m.plane.waitSynced(t, "reviews.books")
		})
	}
}

func TestPoliciesOfIstioHold(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	m.web.waitAnswer(t, http.StatusOK, "reviews")
	t.Run("STRICT mutual TLS", func(t *testing.T) {
		if code, body, err := m.node.request("http://" + reviewsAddress + ":9080/"); err == nil {
			t.Errorf("plaintext from outside the mesh is answered with %d %s", code, body)
		}
	})
	t.Run("an AuthorizationPolicy", func(t *testing.T) {
		m.plane.write(t, "policies/all.yaml", strict+allowOnly("someone-else"))
		m.web.waitAnswer(t, http.StatusForbidden, "RBAC")
		m.plane.write(t, "policies/all.yaml", strict+allowOnly("web"))
		m.web.waitAnswer(t, http.StatusOK, "reviews")
	})
	t.Run("a VirtualService", func(t *testing.T) {
		m.plane.write(t, "policies/all.yaml", strict+teapotForAda)
		m.web.waitAnswer(t, http.StatusTeapot, "", "X-User", "ada")
		m.web.waitAnswer(t, http.StatusOK, "reviews", "X-User", "bob")
	})
	m.web.accepted(t)
	m.reviews.accepted(t)
}

func allowOnly(account string) string {
	return `---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: reviews, namespace: books}
spec:
  selector: {matchLabels: {app: reviews}}
  rules: [{from: [{source: {principals: ["cluster.local/ns/books/sa/` + account + `"]}}]}]
`
}

const teapotForAda = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: books}
spec:
  hosts: [reviews.books.svc.cluster.local]
  http:
  - match: [{headers: {x-user: {exact: ada}}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: reviews.books.svc.cluster.local}}]
  - route: [{destination: {host: reviews.books.svc.cluster.local}}]
`

// TestIstiodIsKilledAndRestarted: requests succeed without istiod, and the policies of the new istiod are applied.
func TestIstiodIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	m.web.waitAnswer(t, http.StatusOK, "reviews")
	_ = m.plane.cmd.Process.Kill()
	<-m.plane.ended
	for range 100 {
		if code, body, err := m.web.requestReviews(); code != http.StatusOK {
			t.Fatalf("without istiod: %d %s %v", code, body, err)
		}
	}
	envoy := m.web.envoy(t)
	m.plane.write(t, "policies/all.yaml", strict+teapotForAda)
	m.plane.start(t)
	m.web.waitAnswer(t, http.StatusTeapot, "", "X-User", "ada")
	m.web.accepted(t)
	if now := m.web.envoy(t); now != envoy {
		t.Errorf("Envoy was process %s, and is process %s", envoy, now)
	}
}

// TestUnknownTokenIsReported: the pod does not become ready, and the agent reports that the cluster rejects its token.
func TestUnknownTokenIsReported(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.157.0.1")
	plane := newIstiod(t, n, cluster(), strict)
	web := newPod(t, plane, "web", webAddress)
	web.write(t, tokenPath, "not a token")
	web.start(t)
	testenv.Eventually(t, "the agent says why it is not ready", func() error {
		code, body, err := n.request("http://" + webAddress + ":15020/healthz/ready")
		if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(string(body), "Unauthenticated") {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	web.write(t, tokenPath, podToken("web")) // as a kubelet replaces it
	web.waitReady(t, n)
}

// TestNamesOfAnIstioMeshResolve: the name table that istiod sends is the agent's.
func TestNamesOfAnIstioMeshResolve(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict, "ISTIO_META_DNS_CAPTURE=true")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return m.web.dial(ctx, "udp", "127.0.0.1:15053")
	}}
	for _, name := range []string{"reviews.books.svc.cluster.local.", "reviews.books.svc.", "reviews.books.", "reviews."} {
		testenv.Eventually(t, name+" resolves", func() error {
			addresses, err := resolver.LookupHost(t.Context(), name)
			if err == nil && !slices.Equal(addresses, []string{reviewsService}) {
				err = fmt.Errorf("to %v", addresses)
			}
			return err
		})
	}
}

// TestFilterOfAnotherEnvoyIsNamed: if istiod is not configured for the upstream release of Envoy, the pod does not
// become ready. The agent names the filter and the setting of istiod that omits it.
func TestFilterOfAnotherEnvoyIsNamed(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.157.0.1")
	plane := newIstiod(t, n, cluster(), strict, "PILOT_ENABLE_ALPN_FILTER=true", "PILOT_ENABLE_METADATA_EXCHANGE=true")
	newPod(t, plane, "web", webAddress).start(t)
	testenv.Eventually(t, "the agent names the filter", func() error {
		code, body, err := n.request("http://" + webAddress + ":15020/healthz/ready")
		if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(string(body), "istio.metadata_exchange") ||
			!strings.Contains(string(body), "PILOT_ENABLE_METADATA_EXCHANGE=false") {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
}

// hasWarnings reports whether a pod's output contains a warning or an error. It ignores the report of Envoys before 1.38
// about a runtime flag that they do not know. The agent omits the flag if it knows the version before it starts Envoy.
func hasWarnings(output string) bool {
	for line := range strings.Lines(output) {
		if (strings.Contains(line, "\twarn\t") || strings.Contains(line, "\terror\t")) && !strings.Contains(line, "envoy envoy_bug") {
			return true
		}
	}
	return false
}
