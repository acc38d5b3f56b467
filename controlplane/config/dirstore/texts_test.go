package dirstore

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const oneRule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: NAME, namespace: shop}
spec: {host: HOST}
`

func rule(name, host string) string {
	return strings.NewReplacer("NAME", name, "HOST", host).Replace(oneRule)
}

func TestTextsEqualADirectory(t *testing.T) {
	now, _ := ReadTexts([]File{{"old/a.yaml", rule("one", "old")}, {"old/b.yaml", rule("two", "old")}, {"old/c.yaml", rule("three", "old")}}, config.Parser{}, nil)
	store, problems := ReadTexts([]File{
		{"new/a.yaml", strings.Replace(rule("one", "new"), "host", "hast", 1)}, // refused: the previous version stays
		{"new/b.yaml", "a: [\n"}, // unreadable: the file's previous documents stay
		{"new/d.yaml", rule("four", "first")},
		{"new/e.yaml", rule("four", "second")}, // a duplicate name
	}, config.Parser{}, now)
	var got []string
	for _, r := range store.List(config.DestinationRule) {
		got = append(got, r.Name+"="+strings.TrimSuffix(strings.TrimPrefix(r.Spec.(interface{ String() string }).String(), `host:"`), `"`))
	}
	if want := "four=first one=old two=old"; strings.Join(got, " ") != want {
		t.Errorf("in force would be %s, want %s", got, want)
	}
	var codes []string
	for _, p := range problems {
		codes = append(codes, string(p.Code))
	}
	if got := strings.Join(codes, " "); !strings.HasPrefix(got, "PF000") || !strings.HasSuffix(got, "PF0001 PF0005") {
		t.Errorf("problems are %s: %v", got, problems)
	}
}
