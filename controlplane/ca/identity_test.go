package ca

import (
	"strings"
	"testing"
)

func TestSPIFFEIDRoundTrip(t *testing.T) {
	for _, id := range []Identity{
		{"cluster.local", "default", "bookinfo-reviews"},
		{"mesh-1.example", "istio-system", "istiod"},
		{"td", "a", "system.Node_1"},
	} {
		got, err := ParseSPIFFEID(id.SPIFFEID())
		if err != nil || got != id {
			t.Errorf("parsing %s returns %v, %v", id, got, err)
		}
	}
}

func TestSPIFFEIDsOfOtherFormsAreRefused(t *testing.T) {
	for _, s := range []string{
		"", "spiffe://", "spiffe://td", "spiffe://td/", "spiffe://td/ns/a", "spiffe://td/ns/a/sa", "spiffe://td/ns/a/sa/",
		"spiffe://td/ns//sa/b", "spiffe://td/ns/a/sa/b/", "spiffe://td/ns/a/sa/b/c", "spiffe://td/sa/a/ns/b", "spiffe:///ns/a/sa/b",
		"http://td/ns/a/sa/b", "td/ns/a/sa/b", "spiffe://td/ns/../sa/b", "spiffe://td/ns/a/sa/.", "spiffe://td/ns/%61/sa/b",
		"spiffe://td/ns/a/sa/b?x", "spiffe://td/ns/a/sa/b#x", "spiffe://u@td/ns/a/sa/b", "spiffe://td:1/ns/a/sa/b",
		"spiffe://TD/ns/a/sa/b", "spiffe://td/ns/a/sa/b ", "spiffe://td/ns/a/sa/bü", "spiffe://td/ns/a/sa/b\n",
		"spiffe://td/ns/a/sa/" + strings.Repeat("b", 254),
	} {
		if id, err := ParseSPIFFEID(s); err == nil {
			t.Errorf("parsing %q succeeds: %v", s, id)
		}
	}
}

func TestNamesInvalidInASPIFFEIDAreRefused(t *testing.T) {
	for _, id := range []Identity{
		{"td", "", "b"}, {"td", "a", ""}, {"", "a", "b"}, {"td", "a/sa/admin", "b"}, {"td", "a", "b/c"}, {"td", "..", "b"},
		{"td/ns/a/sa/b", "a", "b"}, {"td", "a", "b?"}, {"td", "a b", "c"}, {"td", "a", "b:c"}, {"td", "a", "b%2f"},
	} {
		if err := id.Validate(); err == nil {
			t.Errorf("Validate accepts %#v", id)
		}
	}
}

func FuzzParseSPIFFEID(f *testing.F) {
	for _, s := range []string{"spiffe://cluster.local/ns/default/sa/reviews", "spiffe://td/ns/../sa/b", "spiffe://td/ns/%61/sa/b", "", "spiffe://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseSPIFFEID(s)
		if err == nil && id.SPIFFEID() != s {
			t.Errorf("parsing %q returns the ID %q", s, id.SPIFFEID())
		}
		if strings.ContainsAny(id.Namespace+id.ServiceAccount, "/ %?#") && err == nil {
			t.Errorf("%q has the namespace %q and the account %q", s, id.Namespace, id.ServiceAccount)
		}
	})
}
