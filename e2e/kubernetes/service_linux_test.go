package kubernetes

import (
	"strings"
	"testing"
)

// startProxy starts kube-proxy on the first node. It needs the node's object.
func (c *cluster) startProxy(t *testing.T) {
	t.Helper()
	c.startPart(t, "kube-proxy", "--kubeconfig="+c.pki.path("proxy.kubeconfig"), "--proxy-mode=nftables", "--hostname-override="+nodeName,
		"--bind-address="+nodeAddress, "--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
		// Replies between two pods of the bridge would not pass the node.
		"--masquerade-all",
		// A network namespace other than the first cannot set these limits.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s")
}

// TestServiceLeadsToACapturedPod sends a request to a Service's address, which kube-proxy translates.
func TestServiceLeadsToACapturedPod(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	c.apply(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"default"},
"spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":8080}]}}`)
	t.Cleanup(func() { c.mustKubectl(t, "delete", "service", "web") })
	p := pod("web")
	c.createRunning(t, injected(p, c.envoySidecar(t, p)))
	db, _ := c.createRunning(t, pod("db"))
	service := strings.TrimSpace(c.mustKubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"))
	c.waitAnswer(t, "through the service", db, service, "200 through=[inbound] host=web")
}
