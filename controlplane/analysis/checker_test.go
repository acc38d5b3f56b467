package analysis_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TestCheckedRulesAreCheckedAgainWhenTheirReferencesChange: the rule has no findings in the first check. Each change
// makes one of its references invalid.
func TestCheckedRulesAreCheckedAgainWhenTheirReferencesChange(t *testing.T) {
	rules := traffic("DestinationRule", "r", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}]}") +
		traffic("VirtualService", "x", "{hosts: [reviews.example.com], gateways: [edge], http: [{route: [{destination: {host: reviews, subset: v1, port: {number: 80}}}]}]}")
	for name, change := range map[string]struct {
		remove config.Key
		apply  string
		want   config.Code
	}{
		"service removed": {config.Key{Kind: config.Service, Namespace: "shop", Name: "reviews"}, "", config.UnknownHost},
		"port changed":    {apply: document("v1", "Service", "reviews", "shop", "{selector: {app: reviews}, ports: [{name: http, port: 81, targetPort: 8080}]}"), want: config.UnknownPort},
		"labels changed": {apply: traffic("WorkloadEntry", "reviews-1", "{address: 10.0.0.1, serviceAccount: reviews, labels: {app: reviews, version: v2, security.istio.io/tlsMode: istio}}"),
			want: config.SubsetWithoutEndpoints},
		"subset removed":  {apply: traffic("DestinationRule", "r", "{host: reviews}"), want: config.UnknownSubset},
		"gateway removed": {config.Key{Kind: config.Gateway, Namespace: "shop", Name: "edge"}, "", config.UnknownGateway},
		"rule changed":    {apply: virtualService("{route: [{destination: {host: none.example.com}}]}"), want: config.UnknownHost},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, shop+rules)
			if p := problems(m); p != "" {
				t.Fatalf("findings before the change:\n%s", p)
			}
			if change.apply != "" {
				m.apply(change.apply)
			} else {
				m.store.Delete(change.remove)
				m.rebuild([]config.Key{change.remove})
			}
			got := m.check()
			if !slices.ContainsFunc(got, func(p config.Problem) bool { return p.Code == change.want }) || !slices.Equal(got, analysis.Check(m.snap)) {
				t.Errorf("findings after the change:\n%s", problems(m))
			}
		})
	}
}

func TestCheckerDoesNotRetainSnapshots(t *testing.T) {
	m := newTestMesh(t, nil, shop+virtualService("{route: [{destination: {host: revews}}]}"))
	if p := problems(m); !strings.Contains(p, "revews") {
		t.Fatalf("findings:\n%s", p)
	}
	first := weak.Make(m.snap)
	m.snap = nil
	m.rebuild(nil)
	runtime.GC()
	if first.Value() != nil {
		t.Error("the checker retains the snapshot")
	}
	if p := problems(m); !strings.Contains(p, "revews") {
		t.Errorf("findings of the next snapshot:\n%s", p)
	}
}
