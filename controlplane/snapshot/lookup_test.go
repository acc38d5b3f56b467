package snapshot

import (
	"fmt"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

func TestPeerAuthenticationPrecedence(t *testing.T) {
	m := newTestMesh(t, nil, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: ns, namespace: one}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: workload, namespace: one}
spec: {selector: {matchLabels: {app: a}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {8080: {mode: STRICT}, 8081: {mode: UNSET}}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: unset, namespace: one}
spec: {selector: {matchLabels: {app: inherits}}, portLevelMtls: {1: {mode: STRICT}}}
`)
	for _, tc := range []struct {
		namespace, app string
		port           uint32
		want           Mode
	}{
		{"two", "a", 80, Strict},
		{"one", "b", 80, Disable},
		{"one", "a", 80, Permissive},
		{"one", "a", 8080, Strict},
		{"one", "a", 8081, Permissive},
		{"one", "inherits", 80, Disable},
		{"one", "inherits", 1, Strict},
	} {
		if got := m.MTLSMode(tc.namespace, map[string]string{"app": tc.app}, tc.port); got != tc.want {
			t.Errorf("the mode of %s/%s:%d is %s, want %s", tc.namespace, tc.app, tc.port, got, tc.want)
		}
	}
	if got := newTestMesh(t, nil).MTLSMode("one", nil, 80); got != Permissive {
		t.Errorf("the mode without any policy is %s", got)
	}
}

func rule(name, namespace, host, exportTo string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: %s}
spec: {host: %q, exportTo: [%s], subsets: [{name: %s}]}
`, name, namespace, host, exportTo, name)
}

func TestDestinationRuleNamespacePrecedence(t *testing.T) {
	const host = "a.service.svc.cluster.local"
	m := newTestMesh(t, nil, service("a", "service"),
		rule("own", "caller", host, ""), rule("servers", "service", "a", ""), rule("roots", "istio-system", "*.cluster.local", ""),
		rule("private", "private", host, `"."`))
	subsetFrom := func(namespace string) string {
		d := m.Scope(namespace, nil).DestinationRule(m.service(host))
		if d == nil {
			return ""
		}
		return d.Subsets[0].GetName()
	}
	for namespace, want := range map[string]string{"caller": "own", "private": "private", "other": "servers", "service": "servers"} {
		if got := subsetFrom(namespace); got != want {
			t.Errorf("from namespace %s: %q, want %q", namespace, got, want)
		}
	}
	m.apply(rule("servers", "service", "a", `"."`))
	if got := subsetFrom("other"); got != "roots" {
		t.Errorf("after the rule in the service's namespace became private: %q", got)
	}
}

func TestDestinationRulesOfOneHostAndNamespaceAreMerged(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"), `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: first, namespace: one}
spec:
  host: a
  trafficPolicy: {loadBalancer: {simple: RANDOM}, connectionPool: {tcp: {maxConnections: 1}}, portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]}
  subsets: [{name: v1, labels: {version: first}, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: second, namespace: one}
spec: {host: a.one.svc.cluster.local, trafficPolicy: {tls: {mode: SIMPLE}}, subsets: [{name: v1, labels: {version: second}}, {name: v2}]}
`)
	d := m.Scope("two", nil).DestinationRule(m.service("a.one.svc.cluster.local"))
	if len(d.From) != 2 || len(d.Subsets) != 2 || d.Subset("v1").GetLabels()["version"] != "first" {
		t.Fatalf("merged: %+v", d)
	}
	if got := d.Traffic("", 81); got.LoadBalancer.GetSimple() != networking.LoadBalancerSettings_RANDOM || got.TLS != nil {
		t.Errorf("the policy of the host is %+v", got)
	}
	// Port-level settings do not inherit from the policy that contains them. A subset replaces whole fields.
	if got := d.Traffic("", 80); got.LoadBalancer != nil || got.TLS.GetMode() != networking.ClientTLSSettings_DISABLE {
		t.Errorf("the policy of the port is %+v", got)
	}
	if got := d.Traffic("v1", 81); got.LoadBalancer.GetSimple() != networking.LoadBalancerSettings_ROUND_ROBIN || got.ConnectionPool == nil {
		t.Errorf("the policy of the subset is %+v", got)
	}
}

func TestMostSpecificThenOldestRuleWinsForSidecars(t *testing.T) {
	vs := func(name, host string) string {
		return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: one}
spec: {hosts: [%q], http: [{route: [{destination: {host: a}}]}]}
`, name, host)
	}
	m := newTestMesh(t, nil, service("a", "one"), service("b", "one"), vs("exact", "a"), vs("wide", "*.one.svc.cluster.local"), vs("wider", "*.local"))
	scope := m.Scope("two", nil)
	if got := scope.VirtualService("a.one.svc.cluster.local"); got == nil || got.Name != "exact" {
		t.Errorf("a: %v", got)
	}
	if got := scope.VirtualService("b.one.svc.cluster.local"); got == nil || got.Name != "wide" {
		t.Errorf("b: %v", got)
	}
	// A second, newer rule for a host has no effect.
	m.apply(vs("also", "a"))
	if got := m.Scope("two", nil).VirtualService("a.one.svc.cluster.local"); got.Name != "exact" {
		t.Errorf("the rule for host a, which has two rules, is %s", got.Name)
	}
}

func TestSidecarLimitsVisibleServices(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"), service("b", "two"), service("c", "three"), `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: one}
spec: {egress: [{hosts: ["./*"]}, {hosts: ["two/b.two.svc.cluster.local"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: one}
spec: {workloadSelector: {labels: {app: narrow}}, egress: [{hosts: ["~/*"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: istio-system}
spec: {egress: [{hosts: ["three/*"]}]}
`)
	for _, tc := range []struct{ namespace, app, want string }{
		{"one", "any", "a b"}, {"one", "narrow", ""}, {"two", "any", "c"},
	} {
		var names []string
		for _, svc := range m.Scope(tc.namespace, map[string]string{"app": tc.app}).Services {
			names = append(names, svc.Name)
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("%s in %s sees %q, want %q", tc.app, tc.namespace, got, tc.want)
		}
	}
	if n := len(m.GatewayScope("one", nil).Services); n != 3 {
		t.Errorf("a gateway sees %d services", n)
	}
}

func TestSidecarExcludesHosts(t *testing.T) {
	for hosts, want := range map[string]string{
		`"*/*", "~two/*"`:                                  "a c",
		`"*/*", "~/b.two.svc.cluster.local"`:               "a c",
		`"*/*", "~two/b.two.svc.cluster.local", "~./*"`:    "c",
		`"*/*", "~one/b.two.svc.cluster.local"`:            "a b c",
		`"*/*", "~/*"`:                                     "",
		`"~two/*"`:                                         "",
		`"two/*", "~/*.three.svc.cluster.local"`:           "b",
		`"two/*", "*/c.three.svc.cluster.local", "~two/*"`: "c",
	} {
		m := newTestMesh(t, nil, service("a", "one"), service("b", "two"), service("c", "three"), `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: one}
spec: {egress: [{hosts: [`+hosts+`]}]}
`)
		var names []string
		for _, svc := range m.Scope("one", nil).Services {
			names = append(names, svc.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("hosts [%s] import the services %q, want %q", hosts, got, want)
		}
	}
}

func TestPoliciesOfTheRootNamespaceApplyEverywhere(t *testing.T) {
	m := newTestMesh(t, nil, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: root, namespace: istio-system}
spec: {selector: {matchLabels: {app: a}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: own, namespace: one}
spec: {}
`)
	for labels, want := range map[string]int{"a": 2, "b": 1} {
		if got := m.Policies("one", map[string]string{"app": labels}); len(got) != want {
			t.Errorf("app %s has %d policies, want %d", labels, len(got), want)
		}
	}
	if got := m.Policies("istio-system", map[string]string{"app": "a"}); len(got) != 1 {
		t.Errorf("%d policies apply in the root namespace itself", len(got))
	}
}

// TestRulesWithWorkloadSelector: such rules apply only to the selected workloads of their namespace. They take
// precedence over rules without a selector.
func TestRulesWithWorkloadSelector(t *testing.T) {
	m := newTestMesh(t, nil, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: one}
spec: {hosts: [a.example], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{address: 10.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all, namespace: one}
spec: {host: a.example, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: some, namespace: one}
spec: {host: a.example, workloadSelector: {matchLabels: {app: x}}, trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}, exportTo: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one, namespace: one}
spec: {host: a.example, workloadSelector: {matchLabels: {app: x, version: v2}}, subsets: [{name: s}]}
`)
	of := func(sc *Scope) string {
		if d := sc.DestinationRule(sc.Service("a.example")); d != nil {
			return d.From[0].Name
		}
		return ""
	}
	for _, tc := range []struct {
		namespace string
		labels    map[string]string
		want      string
	}{
		{"one", nil, "all"}, {"one", map[string]string{"app": "y"}, "all"}, {"one", map[string]string{"app": "x"}, "some"},
		{"one", map[string]string{"app": "x", "version": "v2"}, "one"}, {"two", map[string]string{"app": "x"}, "all"},
	} {
		if got := of(m.Scope(tc.namespace, tc.labels)); got != tc.want {
			t.Errorf("%s %v: %q, want %q", tc.namespace, tc.labels, got, tc.want)
		}
		if got := of(m.GatewayScope(tc.namespace, tc.labels)); got != tc.want {
			t.Errorf("gateway of %s %v: %q, want %q", tc.namespace, tc.labels, got, tc.want)
		}
	}
}
