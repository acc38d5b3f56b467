package translate_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// clusterPods is a Service of three pods on three nodes, without sidecars. The pod of the client is on the first node.
const clusterPods = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: back}, spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}] MORE}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: front, labels: {app: client}}, spec: {nodeName: n1}, status: {podIP: NET.1.1}}
`

const clusterClient = "sidecar client.front NET.1.1 app=client"

// webPod returns the pod web-N on node nN.
func webPod(n int) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: web-%[1]d, namespace: back, uid: u%[1]d, labels: {app: web}}, spec: {nodeName: n%[1]d}, status: {podIP: NET.2.%[1]d}}\n", n)
}

// webSlice returns the EndpointSlice of the pods. conditions contains the conditions of pods that are not ready.
func webSlice(conditions map[int]string) string {
	var endpoints []string
	for n := 1; n <= 3; n++ {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [NET.2.%[1]d], nodeName: n%[1]d, targetRef: {kind: Pod, name: web-%[1]d, uid: u%[1]d}, conditions: {%[2]s}}", n, conditions[n]))
	}
	return fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: back, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [%s]}\n", strings.Join(endpoints, ", "))
}

const notReady = "ready: false, serving: false"

func newClusterEnv(t *testing.T, version string, network int, serviceFields string) *testEnv {
	w := newTestEnv(t, version, network, strings.Replace(clusterPods, "MORE", serviceFields, 1)+webPod(1)+webPod(2)+webPod(3)+webSlice(nil))
	for n := 1; n <= 3; n++ {
		w.serveApp(fmt.Sprintf("NET.2.%d:8080", n), fmt.Sprintf("web-%d", n), nil)
	}
	w.proxy(clusterClient, "front/client")
	return w
}

// servedBy returns the pods that serve requests of the client, in the order of their names.
func (w *testEnv) servedBy() string {
	seen := map[string]bool{}
	for range 30 {
		a := w.request(clientPort, "http://web.back/x")
		name, _, _ := strings.Cut(a.body, " ")
		if a.code != http.StatusOK {
			name = fmt.Sprint(a.code)
		}
		seen[name] = true
	}
	var names []string
	for _, name := range []string{"web-1", "web-2", "web-3", "503"} {
		if seen[name] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// openSession returns the cookie of a session with a pod.
func (w *testEnv) openSession(pod string) (cookie string) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.expandNetwork(clientPort)})}}
	eventually(w.t, func() string {
		resp, err := client.Get("http://web.back/x")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.HasPrefix(string(body), pod+" ") || len(resp.Cookies()) != 1 {
			return fmt.Sprintf("no session with %s: %q, cookies %v, %v", pod, body, resp.Cookies(), err)
		}
		cookie = resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value
		return ""
	})
	return cookie
}

func (w *testEnv) expectServedBy(want string) {
	w.t.Helper()
	eventually(w.t, func() string {
		if got := w.servedBy(); got != want {
			return fmt.Sprintf("the requests are served by %q, want %q", got, want)
		}
		return ""
	})
}

// TestTrafficDistributionPrefersNearPods: pods 1 and 3 are in the client's zone, pod 1 is on its node. No outlier
// detection is configured.
func TestTrafficDistributionPrefersNearPods(t *testing.T) {
	forEachEnvoyVersion(t, 178001, func(t *testing.T, version string, network int) {
		w := newClusterEnv(t, version, network, "")
		w.expectServedBy("web-1 web-2 web-3")
		service := func(fields string) string {
			return strings.Split(strings.Replace(clusterPods, "MORE", fields, 1), "---")[0]
		}
		w.change(service(", trafficDistribution: PreferClose"))
		w.expectServedBy("web-1 web-3")
		w.change(service(", trafficDistribution: PreferSameNode"))
		w.expectServedBy("web-1")
		w.change(webSlice(map[int]string{1: notReady}))
		w.expectServedBy("web-3")
		w.change(webSlice(map[int]string{1: notReady, 3: notReady}))
		w.expectServedBy("web-2")
		w.change(webSlice(nil))
		w.expectServedBy("web-1")

		// A DestinationRule's locality setting takes precedence, also if it disables locality load balancing.
		w.change(ofNetworking("DestinationRule", "web", "back", "host: web.back.svc.cluster.local, trafficPolicy: {loadBalancer: {localityLbSetting: {enabled: false}}}"))
		w.expectServedBy("web-1 web-2 web-3")
	})
}

func TestInternalTrafficPolicyLocalUsesTheOwnNode(t *testing.T) {
	forEachEnvoyVersion(t, 178003, func(t *testing.T, version string, network int) {
		w := newClusterEnv(t, version, network, ", internalTrafficPolicy: Local")
		w.expectServedBy("web-1")
		w.change(webSlice(map[int]string{1: notReady}))
		w.expectServedBy("503")
		// The client's pod is replaced on another node.
		w.change(strings.Split(strings.Replace(clusterPods, "nodeName: n1", "nodeName: n2", 1), "---")[4])
		w.expectServedBy("web-2")
	})
}

// TestPodDeterminesIdentityAndMutualTLS: the sidecars use mutual TLS with the account of the pod to which the slice
// refers, and plaintext with a pod without the label.
func TestPodDeterminesIdentityAndMutualTLS(t *testing.T) {
	const service = `
{apiVersion: v1, kind: Service, metadata: {name: server, namespace: back}, spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server-1, namespace: back, uid: u1, labels: {app: server, version: v1, LABEL}}, spec: {serviceAccountName: server}, status: {podIP: NET.2.1}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: server-1, namespace: back, labels: {kubernetes.io/service-name: server}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [NET.2.1], targetRef: {kind: Pod, name: server-1, uid: u1}}]}
`
	forEachEnvoyVersion(t, 178005, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, strings.Replace(service, "LABEL", "security.istio.io/tlsMode: istio", 1))
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(`sidecar server-1.back NET.2.1 app=server version=v1 POD_PORTS=[{"name":"http","containerPort":8080}]`, "back/server")
		call := func() httpResult { return w.request(clientPort, serverURL) }
		w.expect(200, "xfcc=By=spiffe://cluster.local/ns/back/sa/server", call)
		withSidecar := strings.Replace(service, "LABEL", "security.istio.io/tlsMode: istio", 1)
		w.change(strings.Split(strings.Replace(withSidecar, "serviceAccountName: server", "serviceAccountName: other", 1), "---")[1])
		w.expect(503, "", call)
		w.change(strings.Split(strings.Replace(service, "LABEL", "a: b", 1), "---")[1])
		eventually(t, func() string {
			if a := call(); a.code != 200 || strings.Contains(a.body, "spiffe://") {
				return "with a pod without sidecar: " + a.String()
			}
			return ""
		})
	})
}

// TestTerminatingPodsDrain: a terminating pod receives the requests of its sessions, and no other requests.
func TestTerminatingPodsDrain(t *testing.T) {
	const terminating = "ready: false, serving: true, terminating: true"
	const sessions = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: sessions, namespace: istio-system}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.stateful_session
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSession
          session_state:
            name: envoy.http.stateful_session.cookie
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState
              cookie: {name: session, path: /}
`
	forEachEnvoyVersion(t, 178007, func(t *testing.T, version string, network int) {
		w := newClusterEnv(t, version, network, "")
		w.change(sessions)
		w.change(strings.Replace(strings.Split(strings.Replace(clusterPods, "MORE", "", 1), "---")[0], "namespace: back", "namespace: back, labels: {istio.io/persistent-session: session}", 1))
		cookie := w.openSession("web-2")
		w.change(webSlice(map[int]string{2: terminating}))
		w.expectServedBy("web-1 web-3")
		w.expect(200, "web-2 ", func() httpResult { return w.request(clientPort, "http://web.back/x", "Cookie="+cookie) })
		// The other pods stop, so requests fail instead of being sent to the draining pod.
		w.change(webSlice(map[int]string{1: notReady, 2: terminating, 3: notReady}))
		w.expectServedBy("503")
		w.remove(config.Key{Kind: config.Pod, Namespace: "back", Name: "web-2"})
		w.expect(503, "", func() httpResult { return w.request(clientPort, "http://web.back/x", "Cookie="+cookie) })
	})
}
