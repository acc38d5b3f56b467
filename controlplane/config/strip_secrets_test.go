package config

import (
	"strings"
	"testing"
)

const keptRule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: kept, namespace: shop}
spec: {host: a}
`

func TestRemoveSecretsRetainsOtherDocuments(t *testing.T) {
	for name, text := range map[string]string{
		"comment":   "# kind: Secret\n" + keptRule,
		"list":      "kind: List\napiVersion: v1\nitems:\n- kind: Secret\n  apiVersion: v1\n  data: {tls.key: aGlkZGVu}\n- apiVersion: networking.istio.io/v1\n  kind: DestinationRule\n  metadata: {name: kept, namespace: shop}\n  spec: {host: a}\n",
		"documents": "apiVersion: v1\nkind: Secret\ndata:\n  tls.key: aGlkZGVu\n---\n" + keptRule,
		"escaped":   "{\"kind\": \"Sec\\u0072et\", \"data\": {\"k\": \"aGlkZGVu\"}}\n---\n" + keptRule,
		"alias":     "{x: &k Secret, kind: *k, data: {k: aGlkZGVu}}\n---\n" + keptRule,
		"broken":    "kind: Secret\ndata: [ {tls.key: aGlkZGVu\n---\n" + keptRule,
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
	if string(RemoveSecrets([]byte(keptRule))) != keptRule {
		t.Error("a text without secrets is changed")
	}
}
