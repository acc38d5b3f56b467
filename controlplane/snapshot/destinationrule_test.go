package snapshot

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TestIncrementalRulesEqualFullBuild: incremental builds equal a full build, and a change does not replace the rules of
// other namespaces.
func TestIncrementalRulesEqualFullBuild(t *testing.T) {
	namespaces := []string{"a", "b", "c", "istio-system"}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		store := config.NewMemoryStore()
		put := func(text string) (keys []config.Key) {
			resources, problems := config.Parser{}.Parse("x.yaml", []byte(text))
			if len(resources) == 0 {
				t.Fatal(problems)
			}
			store.Put(resources...)
			return []config.Key{resources[0].Key}
		}
		var s *Snapshot
		for range 60 {
			ns, name := namespaces[r.IntN(len(namespaces))], fmt.Sprint("r", r.IntN(4))
			key := config.Key{Kind: config.DestinationRule, Namespace: ns, Name: name}
			keys := []config.Key{key}
			switch r.IntN(8) {
			case 0:
				store.Delete(key)
			case 1: // makes short names resolve differently
				keys = put(fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: h%d, namespace: %s}, spec: {ports: [{port: %d}]}}", r.IntN(3), ns, 80+r.IntN(3)))
			default:
				put(fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: %s, namespace: %s}, spec: {host: %s, exportTo: [%q], subsets: [{name: v%d}], %s}}", name, ns,
					[]string{"h0", "h1.b", `"*.b.svc.cluster.local"`}[r.IntN(3)], []string{"*", "."}[r.IntN(2)], r.IntN(2),
					[]string{"trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true}}}", "workloadSelector: {matchLabels: {app: x}}", "trafficPolicy: {tls: {mode: SIMPLE, credentialName: c}}"}[r.IntN(3)]))
			}
			prev := s
			s = Build(prev, Inputs{Store: store}, keys)
			got, want := s.index.destinationRules, Build(nil, Inputs{Store: store}, nil).index.destinationRules
			if got := describeRules(got); got != describeRules(want) {
				t.Fatalf("seed %d: incremental build\n%s\nfull build\n%s", seed, got, describeRules(want))
			}
			if !reflect.DeepEqual(got.subsets, want.subsets) || got.traits != want.traits {
				t.Fatalf("seed %d: incremental build %+v\nfull build %+v", seed, got, want)
			}
			if prev == nil || keys[0] != key {
				continue
			}
			for _, other := range namespaces {
				if old := prev.index.destinationRules.byNamespace[other]; other != ns && old != got.byNamespace[other] {
					t.Fatalf("seed %d: the rules of %s were rebuilt for an edit of %s", seed, other, ns)
				}
			}
		}
	}
}

// TestRulesDoNotRetainOtherNamespaces: the rules of a namespace do not reference replaced or removed documents of other
// namespaces. Otherwise these documents would stay in memory.
func TestRulesDoNotRetainOtherNamespaces(t *testing.T) {
	store := config.NewMemoryStore()
	put := func(namespace, subset string) config.Key {
		resources, problems := config.Parser{}.Parse("x.yaml", fmt.Appendf(nil,
			"{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: r, namespace: %s}, spec: {host: h.x.example, subsets: [%s]}}", namespace, subset))
		if len(resources) != 1 {
			t.Fatal(problems)
		}
		store.Put(resources...)
		return resources[0].Key
	}
	edited := []config.Key{put("a", "{name: v0}"), put("b", "{name: v1}")}
	s := Build(nil, Inputs{Store: store}, edited)
	old := weak.Make(s.resources[config.DestinationRule][1])
	edited = []config.Key{put("b", "{name: v2}")}
	for range 2 { // a snapshot may reference parts of its predecessor, so two are built
		s = Build(s, Inputs{Store: store}, edited)
	}
	for range 3 {
		runtime.GC()
	}
	if old.Value() != nil {
		t.Error("the rules of namespace a reference a replaced document of namespace b")
	}

	store.Delete(edited[0]) // after that, the next namespace has the first index
	s = Build(s, Inputs{Store: store}, []config.Key{edited[0], put("c", "")})
	if got := s.index.destinationRules.subsets.exact["h.x.example"]; slices.Contains(got, "v2") {
		t.Errorf("subsets are %v after the document of v2 was removed", got)
	}
}

// describeRules returns the documents in force for callers of each namespace.
func describeRules(r *destinationRules) (text string) {
	from := func(d *DestinationRule) string {
		if d == nil {
			return "-"
		}
		text := fmt.Sprintf("%s of %s for %s from", d.Host, d.Namespace, d.key.selector)
		for _, r := range d.From {
			text += fmt.Sprintf(" %p", r) // the pointer distinguishes documents with the same name
		}
		return text
	}
	for _, d := range r.all {
		text += from(d) + "\n"
	}
	for _, namespace := range []string{"a", "b", "c", "istio-system"} {
		for _, host := range []string{"h0.a.svc.cluster.local", "h1.b.svc.cluster.local", "h2.b.svc.cluster.local", "h0"} {
			text += namespace + " " + host + ": " + from(r.lookup(namespace, host, "b")) + "\n"
		}
		byHost, choice := r.forCaller(namespace, map[string]string{"app": "x"})
		text += fmt.Sprintf("%s %d %q\n", namespace, len(byHost), choice)
	}
	return text
}
