package config

import (
	"slices"
	"testing"
	"time"
)

func TestDocumentsAreOrderedByAgeThenNameThenNamespace(t *testing.T) {
	resource := func(namespace, name string, created time.Time) *Resource {
		return &Resource{Key: Key{Kind: VirtualService, Namespace: namespace, Name: name}, Created: created}
	}
	old, young := time.Unix(1, 0), time.Unix(2, 0)
	want := []*Resource{resource("z", "z", old), resource("b", "a", young), resource("a", "b", young), resource("b", "b", young)}
	got := SortByAge([]*Resource{want[2], want[1], want[3], want[0]})
	if !slices.Equal(got, want) {
		t.Errorf("the order is %v", got)
	}
	if a, b := ExplainPrecedence(want[0], want[1]), ExplainPrecedence(want[1], want[2]); a != "is older" || b != "comes first in name order" {
		t.Errorf("reasons: %q, %q", a, b)
	}
}
