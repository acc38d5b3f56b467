package kube

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

func TestSelectionOfNamespaces(t *testing.T) {
	s := newSelection()
	s.setNamespace("a", map[string]string{"team": "a"})
	s.setNamespace("b", map[string]string{"team": "b"})
	expect := func(name string, wantSelected, wantKnown bool) {
		t.Helper()
		if selected, known := s.selects(name); selected != wantSelected || known != wantKnown {
			t.Errorf("selects(%s) = %v, %v, want %v, %v", name, selected, known, wantSelected, wantKnown)
		}
	}
	expect("a", true, true)
	expect("unknown", true, true)

	byLabel := &meshconfig.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	byExpression := &meshconfig.LabelSelector{MatchExpressions: []*meshconfig.LabelSelectorRequirement{{Key: "mesh", Operator: "Exists"}}}
	if changed, invalid := s.setSelectors([]*meshconfig.LabelSelector{byLabel, byExpression}); !changed || invalid != nil {
		t.Errorf("setSelectors = %v, %v", changed, invalid)
	}
	if changed, _ := s.setSelectors([]*meshconfig.LabelSelector{byLabel, byExpression}); changed {
		t.Error("the same selectors count as a change")
	}
	expect("a", true, true)
	expect("b", false, true)
	expect("unknown", false, false)
	if changed, added := s.setNamespace("b", map[string]string{"mesh": ""}); !changed || !added {
		t.Errorf("selecting a known namespace: changed %v, added %v", changed, added)
	}
	expect("b", true, true)
	if changed, added := s.setNamespace("c", map[string]string{"mesh": ""}); !changed || added {
		t.Errorf("a new namespace, whose objects wait: changed %v, added %v", changed, added)
	}
	if changed, added := s.setNamespace("b", nil); !changed || added {
		t.Errorf("a namespace that is not selected any more: changed %v, added %v", changed, added)
	}

	_, invalid := s.setSelectors([]*meshconfig.LabelSelector{{MatchExpressions: []*meshconfig.LabelSelectorRequirement{{Key: "k", Operator: "Contains"}}}})
	if len(invalid) != 1 {
		t.Errorf("an invalid selector causes the errors %v, want one", invalid)
	}
	expect("a", false, true)
}
