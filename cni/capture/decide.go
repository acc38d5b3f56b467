package capture

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// Settings are the redirection settings that apply to all pods of the node.
type Settings struct {
	// ExcludeNamespaces are namespaces whose pods are never captured.
	ExcludeNamespaces []string
	// AgentNamespace is the node agent's namespace. The node agent's own pods are never captured, because they start
	// before the agent can respond to the plugin.
	AgentNamespace string
	// ProxyListenPort and InboundListenPort are Envoy's ports for captured outbound and inbound traffic. TunnelPort is
	// the HBONE port. 0 means the default: 15001, 15006 and 15008.
	ProxyListenPort, InboundListenPort, TunnelPort uint16
	// IPv6 is the policy for IPv6 traffic: auto (also ""), capture, reject or pass.
	IPv6 string
}

// Skip is the reason why a pod is not captured: a stable word for programs, and a sentence for users.
type Skip struct{ Word, Reason string }

// SkipByName returns the reason to skip a pod because of its name or namespace, or nil. It does not need the pod's spec,
// so that system pods can start before the node agent and the API server respond.
func (s *Settings) SkipByName(namespace, name string) *Skip {
	switch {
	case slices.Contains(s.ExcludeNamespaces, namespace):
		return &Skip{"excluded-namespace", fmt.Sprintf("namespace %s is in exclude_namespaces", namespace)}
	case s.AgentNamespace != "" && namespace == s.AgentNamespace && isAgent(name):
		return &Skip{"own-agent", "the pod is a CNI node agent"}
	}
	return nil
}

func isAgent(name string) bool {
	return strings.HasPrefix(name, "istio-cni-node-") || strings.HasPrefix(name, "pilotfish-cni-")
}

// SkipPod returns the reason to skip a pod, or nil if its traffic has to be captured.
func (s *Settings) SkipPod(p *agentapi.Pod) *Skip {
	if skip := s.SkipByName(p.Metadata.Namespace, p.Metadata.Name); skip != nil {
		return skip
	}
	if p.Spec.HostNetwork {
		return &Skip{"host-network", "the pod uses the node's network (hostNetwork)"}
	}
	if hasInit(p) {
		return &Skip{"init-container", "the pod's init container " + InitContainer + " redirects its traffic"}
	}
	proxy := Proxy(p)
	if proxy == nil {
		return &Skip{"no-sidecar", "the pod has no sidecar container named " + ProxyContainer}
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
		return &Skip{"no-envoy", "the pod's sidecar does not run Envoy, because DISABLE_ENVOY is set"}
	}
	if len(proxy.Args) >= 2 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar" && !strings.HasPrefix(proxy.Args[1], "-") {
		return &Skip{"no-sidecar-proxy", fmt.Sprintf("the pod's proxy runs as %q, not as a sidecar", proxy.Args[1])}
	}
	return nil
}

const injectKey = "sidecar.istio.io/inject"

// skipInjection returns the reason to skip a pod that opts out of injection or was not injected. The label
// sidecar.istio.io/inject overrides the annotation. A pod was injected if it has the annotation
// sidecar.istio.io/status, which the injector adds. A container with the sidecar's name is not sufficient.
func skipInjection(p *agentapi.Pod) *Skip {
	value, where := p.Metadata.Annotations[injectKey], "annotation"
	if label, set := p.Metadata.Labels[injectKey]; set {
		value, where = label, "label"
	}
	if wanted, err := strconv.ParseBool(value); err == nil && !wanted {
		return &Skip{"not-wanted", fmt.Sprintf("the pod's %s %s is %q", where, injectKey, value)}
	}
	if _, set := p.Metadata.Annotations["sidecar.istio.io/status"]; !set {
		return &Skip{"not-injected", "the pod lacks the annotation sidecar.istio.io/status, which the injector adds"}
	}
	return nil
}

func isTrue(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}
