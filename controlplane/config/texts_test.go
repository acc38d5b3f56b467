package config

import (
	"strings"
	"testing"
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
	now, _ := ReadTexts([]File{{"old/a.yaml", rule("one", "old")}, {"old/b.yaml", rule("two", "old")}, {"old/c.yaml", rule("three", "old")}}, Parser{}, nil)
	store, problems := ReadTexts([]File{
		{"new/a.yaml", strings.Replace(rule("one", "new"), "host", "hast", 1)}, // refused: the previous version stays
		{"new/b.yaml", "a: [\n"}, // unreadable: the file's previous documents stay
		{"new/d.yaml", rule("four", "first")},
		{"new/e.yaml", rule("four", "second")}, // a duplicate name
	}, Parser{}, now)
	var got []string
	for _, r := range store.List(DestinationRule) {
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

func TestRemoveSecretsRetainsOtherDocuments(t *testing.T) {
	for name, text := range map[string]string{
		"comment":   "# kind: Secret\n" + rule("kept", "a"),
		"list":      "kind: List\napiVersion: v1\nitems:\n- kind: Secret\n  apiVersion: v1\n  data: {tls.key: aGlkZGVu}\n- apiVersion: networking.istio.io/v1\n  kind: DestinationRule\n  metadata: {name: kept, namespace: shop}\n  spec: {host: a}\n",
		"documents": "apiVersion: v1\nkind: Secret\ndata:\n  tls.key: aGlkZGVu\n---\n" + rule("kept", "a"),
		"escaped":   "{\"kind\": \"Sec\\u0072et\", \"data\": {\"k\": \"aGlkZGVu\"}}\n---\n" + rule("kept", "a"),
		"alias":     "{x: &k Secret, kind: *k, data: {k: aGlkZGVu}}\n---\n" + rule("kept", "a"),
		"broken":    "kind: Secret\ndata: [ {tls.key: aGlkZGVu\n---\n" + rule("kept", "a"),
	} {
		out := RemoveSecrets([]byte(text))
		if strings.Contains(string(out), "aGlkZGVu") {
			t.Errorf("%s: the secret is in\n%s", name, out)
		}
		resources, _ := Parse("x", out)
		if len(resources) != 1 || resources[0].Name != "kept" {
			t.Errorf("%s: left is\n%s", name, out)
		}
		if name == "documents" && resources[0].Origin.Line != 6 {
			t.Errorf("%s: the rest has moved to line %d", name, resources[0].Origin.Line)
		}
	}
	if text := rule("kept", "a"); string(RemoveSecrets([]byte(text))) != text {
		t.Error("a text without secrets is changed")
	}
}
