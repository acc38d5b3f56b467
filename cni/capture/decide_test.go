package capture

import (
	"maps"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// injected returns a pod as Istio's injector creates it, modified by change.
func injected(change func(p *agentapi.Pod)) *agentapi.Pod {
	p := &agentapi.Pod{
		Metadata: agentapi.Metadata{Name: "web", Namespace: "shop", UID: "u1", Labels: map[string]string{},
			Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec: agentapi.PodSpec{Containers: []agentapi.Container{
			{Name: "app"},
			{Name: ProxyContainer, Args: []string{"proxy", "sidecar", "--domain", "x"}},
		}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func annotate(pairs map[string]string) func(p *agentapi.Pod) {
	return func(p *agentapi.Pod) { maps.Copy(p.Metadata.Annotations, pairs) }
}

func env(name, value string) func(p *agentapi.Pod) {
	return func(p *agentapi.Pod) {
		c := Proxy(p)
		c.Env = append(c.Env, agentapi.EnvVar{Name: name, Value: value})
	}
}

func TestSkippedPodsHaveAReason(t *testing.T) {
	settings := Settings{ExcludeNamespaces: []string{"kube-system"}, AgentNamespace: "istio-system"}
	for name, c := range map[string]struct {
		change func(p *agentapi.Pod)
		want   string // the expected Skip.Word; "" if the pod is captured
	}{
		"injected":                      {nil, ""},
		"excluded namespace":            {func(p *agentapi.Pod) { p.Metadata.Namespace = "kube-system" }, "excluded-namespace"},
		"the node agent":                {func(p *agentapi.Pod) { p.Metadata.Namespace, p.Metadata.Name = "istio-system", "istio-cni-node-x" }, "own-agent"},
		"another pod of that namespace": {func(p *agentapi.Pod) { p.Metadata.Namespace = "istio-system" }, ""},
		"a like name elsewhere":         {func(p *agentapi.Pod) { p.Metadata.Name = "istio-cni-node-x" }, ""},
		"host network":                  {func(p *agentapi.Pod) { p.Spec.HostNetwork = true }, "host-network"},
		"redirects by itself":           {func(p *agentapi.Pod) { p.Spec.InitContainers = []agentapi.Container{{Name: InitContainer}} }, "init-container"},
		"waits for the plugin":          {func(p *agentapi.Pod) { p.Spec.InitContainers = []agentapi.Container{{Name: ValidationContainer}} }, ""},
		"no sidecar":                    {func(p *agentapi.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, "no-sidecar"},
		"native sidecar":                {native, ""},
		"no Envoy":                      {env("DISABLE_ENVOY", "true"), "no-envoy"},
		"no Envoy, taken back":          {func(p *agentapi.Pod) { env("DISABLE_ENVOY", "true")(p); env("DISABLE_ENVOY", "false")(p) }, ""},
		"no Envoy, no word":             {env("DISABLE_ENVOY", "perhaps"), ""},
		"gateway":                       {func(p *agentapi.Pod) { Proxy(p).Args[1] = "router" }, "no-sidecar-proxy"},
		"flags at once":                 {func(p *agentapi.Pod) { Proxy(p).Args = []string{"proxy", "--domain", "x"} }, ""},
		"no arguments":                  {func(p *agentapi.Pod) { Proxy(p).Args = nil }, ""},
		"annotation against":            {annotate(map[string]string{injectKey: "false"}), "not-wanted"},
		"annotation without sense":      {annotate(map[string]string{injectKey: "no"}), ""},
		"label against":                 {func(p *agentapi.Pod) { p.Metadata.Labels[injectKey] = "false" }, "not-wanted"},
		"label for, annotation against": {func(p *agentapi.Pod) {
			p.Metadata.Labels[injectKey] = "true"
			p.Metadata.Annotations[injectKey] = "false"
		}, ""},
		"label against, annotation for": {func(p *agentapi.Pod) {
			p.Metadata.Labels[injectKey] = "false"
			p.Metadata.Annotations[injectKey] = "true"
		}, "not-wanted"},
		"not injected":                    {func(p *agentapi.Pod) { p.Metadata.Annotations = nil }, "not-injected"},
		"wants no interception":           {annotate(map[string]string{modeKey: "NONE"}), "no-interception"},
		"wants no interception, by proxy": {env(modeEnv, "NONE"), "no-interception"},
	} {
		got := ""
		if skip := settings.SkipPod(injected(c.change)); skip != nil {
			if got = skip.Word; skip.Reason == "" {
				t.Errorf("%s: no reason", name)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func native(p *agentapi.Pod) {
	proxy := p.Spec.Containers[1]
	proxy.RestartPolicy = "Always"
	p.Spec.Containers, p.Spec.InitContainers = p.Spec.Containers[:1], []agentapi.Container{proxy}
}

func TestStaticPodIsKnownByTheKubeletsUID(t *testing.T) {
	p := injected(annotate(map[string]string{mirrorOf: "hash"}))
	for uid, want := range map[string]bool{"u1": true, "hash": true, "": true, "u2": false} {
		if HasUID(p, uid) != want {
			t.Errorf("HasUID(%q) = %v", uid, !want)
		}
	}
}
