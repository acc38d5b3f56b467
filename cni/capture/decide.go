package capture

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// Settings are the node's, the same for all pods.
type Settings struct {
	// ExcludeNamespaces are those whose pods are never captured.
	ExcludeNamespaces []string
	// AgentNamespace is the node agent's own; its pods there are never captured, as they start before anything answers.
	AgentNamespace string
	// ProxyListenPort and InboundListenPort are the mesh's capture ports, TunnelPort that of HBONE; 0: 15001, 15006, 15008.
	ProxyListenPort, InboundListenPort, TunnelPort uint16
	// IPv6 is the policy for IPv6: auto (also ""), capture, reject or pass.
	IPv6 string
}

// Skip is why a pod is left alone: a word that is stable, for metrics, and a sentence for people.
type Skip struct{ Word, Reason string }

// SkipByName gives the reason for which a pod is left alone whatever it is, or nil. It needs no more than its name, so that
// the system's own pods start before anything can tell what they are.
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

// SkipPod gives the reason for which a pod is left alone, or nil for one that has to be captured.
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
	if mode, where := interception(p, proxy); mode == "NONE" {
		return &Skip{"no-interception", where + " is NONE"}
	}
	return skipInjection(p)
}

func hasInit(p *agentapi.Pod) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c agentapi.Container) bool { return c.Name == InitContainer })
}

func skipProxy(proxy *agentapi.Container) *Skip {
	if value, _ := lookup(proxy, "DISABLE_ENVOY"); isTrue(value) {
		return &Skip{"no-envoy", "its sidecar runs no Envoy (DISABLE_ENVOY)"}
	}
	if len(proxy.Args) >= 2 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar" && !strings.HasPrefix(proxy.Args[1], "-") {
		return &Skip{"no-sidecar-proxy", fmt.Sprintf("its proxy is a %s, not a sidecar", proxy.Args[1])}
	}
	return nil
}

const injectKey = "sidecar.istio.io/inject"

// skipInjection looks at what injection left on the pod. The label beats the annotation. Injection marks each pod that it
// changed: a pod with a container of the sidecar's name alone is somebody else's.
func skipInjection(p *agentapi.Pod) *Skip {
	value, where := p.Metadata.Annotations[injectKey], "annotation"
	if label, set := p.Metadata.Labels[injectKey]; set {
		value, where = label, "label"
	}
	if wanted, err := strconv.ParseBool(value); err == nil && !wanted {
		return &Skip{"not-wanted", fmt.Sprintf("its %s %s is %q", where, injectKey, value)}
	}
	if _, set := p.Metadata.Annotations["sidecar.istio.io/status"]; !set {
		return &Skip{"not-injected", "no injector put the annotation sidecar.istio.io/status on it"}
	}
	return nil
}

func isTrue(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}
