package analysis_test

import (
	"strings"
	"testing"
)

// The pods of a cluster are workloads: a selector that matches one is no mistake, and a selector that matches none is a
// warning.
func TestPodsOfAClusterAreKnownWorkloads(t *testing.T) {
	const pod = `
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {app: web}}, spec: {serviceAccountName: web}, status: {podIP: 10.1.0.1, phase: Running}}
---
{apiVersion: v1, kind: Pod, metadata: {name: done, namespace: shop, labels: {app: job}}, status: {podIP: 10.1.0.2, phase: Succeeded}}
`
	policy := func(name, app string) string {
		return "---\n{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: " + name + ", namespace: shop}, spec: {selector: {matchLabels: {app: " + app + "}}, rules: [{}]}}\n"
	}
	got := problems(newTestMesh(t, nil, pod+policy("good", "web")+policy("typo", "wbe")+policy("finished", "job")))
	for _, want := range []string{"AuthorizationPolicy shop/typo: spec.selector", "AuthorizationPolicy shop/finished: spec.selector"} {
		if !strings.Contains(got, "warning: "+want) {
			t.Errorf("no warning about %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "shop/good") {
		t.Errorf("a policy that selects a pod is reported:\n%s", got)
	}
}
