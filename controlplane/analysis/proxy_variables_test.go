package analysis_test

import (
	"strings"
	"testing"
)

func TestVariablesThatAreLeftOutAreReported(t *testing.T) {
	for namespace, want := range map[string]int{"shop": 2, "istio-system": 0} {
		m := newTestMesh(t, nil, document("networking.istio.io/v1beta1", "ProxyConfig", "x", namespace,
			`{environmentVariables: {ISTIO_META_TEAM: books, MINIMUM_DRAIN_DURATION: 3s, LD_PRELOAD: /tmp/x.so, ISTIO_META_NAMESPACE: istio-system}}`))
		if problems := m.check(); len(problems) != 0 {
			t.Errorf("namespace %s: findings about proxies that the control plane does not start: %v", namespace, problems)
		}
		m.inputs.StartsProxies = true
		m.rebuild(nil)
		problems := m.check()
		if len(problems) != want {
			t.Errorf("namespace %s: %d findings, want %d: %v", namespace, len(problems), want, problems)
		}
		for _, p := range problems {
			text := p.String()
			if !strings.Contains(text, "spec.environmentVariables["+p.Value+"]") || !strings.Contains(text, "namespace istio-system") || p.Value == "MINIMUM_DRAIN_DURATION" {
				t.Errorf("got: %s", text)
			}
		}
	}
}
