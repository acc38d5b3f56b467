package capture

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// Settings are the settings of the node, which apply to all pods.
type Settings struct {
	// ExcludeNamespaces are namespaces whose pods are never captured.
	ExcludeNamespaces []string
	// AgentNamespace is the node agent's namespace. Its pods there are never captured, since they start before the
	// agent can respond.
	AgentNamespace string
	// ProxyListenPort and InboundListenPort are the mesh's capture ports. TunnelPort is the HBONE port. 0: 15001,
	// 15006, 15008.
	ProxyListenPort, InboundListenPort, TunnelPort uint16
	// IPv6 is the policy for IPv6: auto (also ""), capture, reject or pass.
	IPv6 string
}

// Skip is the reason why a pod is not captured: a stable word for metrics, and a sentence for users.
type Skip struct{ Word, Reason string }

// SkipByName returns the reason to skip a pod because of its name or namespace, or nil. It needs no query, so that
// system pods can start before the node agent and the API server respond.
func (s *Settings) SkipByName(namespace, name string) *Skip {
	switch {
	case slices.Contains(s.ExcludeNamespaces, namespace):
		return &Skip{"excluded-namespace", fmt.Sprintf("namespace %s is in exclude_namespaces", namespace)}
	case s.AgentNamespace != "" && namespace == s.AgentNamespace && isAgent(name):
		return &Skip{"own-agent", "the pod is the node agent itself"}
	}
	return nil
}

func isAgent(name string) bool {
	return strings.HasPrefix(name, "istio-cni-node-") || strings.HasPrefix(name, "pilotfish-cni-")
}

// SkipPod returns the reason to skip a pod, or nil if it has to be captured.
func (s *Settings) SkipPod(p *agentapi.Pod) *Skip {
	if skip := s.SkipByName(p.Metadata.Namespace, p.Metadata.Name); skip != nil {
		return skip
	}
	if p.Spec.HostNetwork {
		return &Skip{"host-network", "the pod uses the node's own network"}
	}
	if hasInit(p) {
		return &Skip{"init-container", "its container " + InitContainer + " redirects its traffic"}
	}
	proxy := Proxy(p)
	if proxy == nil {
		return &Skip{"no-sidecar", "it has no container " + ProxyContainer}
	}
	if skip := skipProxy(proxy); skip != nil {
		return skip
	}
	if mode, where := interceptionMode(p, proxy); mode == "NONE" {
		return &Skip{"no-interception", where + " is NONE"}
	}
	return skipInjection(p)
}

func hasInit(p *agentapi.Pod) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c agentapi.Container) bool { return c.Name == InitContainer })
}

func skipProxy(proxy *agentapi.Container) *Skip {
	if value, _ := lookupEnv(proxy, "DISABLE_ENVOY"); isTrue(value) {
		return &Skip{"no-envoy", "its sidecar runs no Envoy (DISABLE_ENVOY)"}
	}
	if len(proxy.Args) >= 2 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar" && !strings.HasPrefix(proxy.Args[1], "-") {
		return &Skip{"no-sidecar-proxy", fmt.Sprintf("its proxy is a %s, not a sidecar", proxy.Args[1])}
	}
	return nil
}

const injectKey = "sidecar.istio.io/inject"

// skipInjection evaluates the marks of sidecar injection. The label overrides the annotation. The injector marks each
// pod that it changes. A container that only has the sidecar's name is not an injected one.
func skipInjection(p *agentapi.Pod) *Skip {
	value, where := p.Metadata.Annotations[injectKey], "annotation"
	if label, set := p.Metadata.Labels[injectKey]; set {
		value, where = label, "label"
	}
	if wanted, err := strconv.ParseBool(value); err == nil && !wanted {
		return &Skip{"not-wanted", fmt.Sprintf("its %s %s is %q", where, injectKey, value)}
	}
	if _, set := p.Metadata.Annotations["sidecar.istio.io/status"]; !set {
		return &Skip{"not-injected", "it has no annotation sidecar.istio.io/status, which an injector adds"}
	}
	return nil
}

func isTrue(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}
