package config

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func refusedMessage(t *testing.T, text, reason string) {
	t.Helper()
	resources, problems := Parse("f.yaml", []byte(text))
	if len(resources) != 0 {
		t.Errorf("accepted: %v", resources)
	}
	for _, p := range problems {
		if p.Severity == Error && strings.Contains(p.Message, reason) && p.Remedy != "" {
			return
		}
	}
	t.Errorf("want %q, got %v", reason, problems)
}

func TestAliasesCannotMultiply(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: bomb}\nspec:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "  a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10))
	}
	refusedMessage(t, b.String(), "aliases make the document")
}

func TestMergeKeysCannotMultiply(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: bomb}\nspec:\n  a: &a {")
	for i := range 1000 {
		fmt.Fprintf(&b, "k%d: 1, ", i)
	}
	b.WriteString("}\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  b%d: {<<: *a}\n", i)
	}
	refusedMessage(t, b.String(), "merge keys make the document too large")
}

func TestAliasOfItselfIsRefused(t *testing.T) {
	refusedMessage(t, "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: &s {ports: *s}\n", "contains itself")
	refusedMessage(t, "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: &s {<<: *s}\n", "contains itself")
}

func TestDeepNestingIsRefused(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	refusedMessage(t, "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: "+deep+"\n", "the nesting is deeper than")
	refusedMessage(t, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": `+deep+"}", "the nesting is deeper than")
	refusedMessage(t, strings.Repeat("[", 20_000), "not YAML")
}

func TestLargeFilesAreRefused(t *testing.T) {
	refusedMessage(t, string(bytes.Repeat([]byte("# padding\n"), MaxFileSize/10+1)), "larger than 16 MiB")
}

func TestTooManyDocumentsAreRefusedExceptTheFirst(t *testing.T) {
	var b strings.Builder
	for i := range maxDocuments + 5 {
		fmt.Fprintf(&b, "---\n{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w%d}, spec: {address: 1.1.1.1}}\n", i)
	}
	resources, problems := Parse("f.yaml", []byte(b.String()))
	if len(resources) != maxDocuments || len(problems) != 1 || !strings.Contains(problems[0].Message, "more than") {
		t.Errorf("%d resources, problems %v", len(resources), problems)
	}
}

func TestProblemsOfOneDocumentAreLimited(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "  nonsense%d: 1\n", i)
	}
	_, problems := Parse("f.yaml", []byte(b.String()))
	if len(problems) != maxProblems+1 || !strings.Contains(problems[maxProblems].Message, "9900 more") {
		t.Errorf("%d problems, the last %v", len(problems), problems[len(problems)-1])
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range samples(f) {
		f.Add(readSample(f, name))
	}
	for _, seed := range []string{
		"a: &a [*a]", "<<: {a: b}", "? [a]\n: b", "--- !!binary x", "%YAML 1.2\n---\n{}", "a: !!int 0x_", "\ufeff---", `{"a": [1e999]}`, "- &x\n- *x",
		"kind: List\napiVersion: v1\nitems: [{kind: List, apiVersion: v1, items: [null, 1]}]",
		wrap("Service", "ports: [{port: 0o17, targetPort: ~}]"), wrap("PeerAuthentication", "portLevelMtls: {1: , 2: {}}"),
		wrap("AuthorizationPolicy", "rules: [{}, {from: [{source: {principals: ['*']}}]}]"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		resources, problems := Parse("f", data)
		seen := map[Key]bool{}
		for _, r := range resources {
			if r.Spec == nil || r.Name == "" || r.Namespace == "" || r.Origin.Line == 0 || seen[r.Key] {
				t.Errorf("half a resource: %+v", r)
			}
			seen[r.Key] = true
			if !r.Equal(r) {
				t.Errorf("%s is not equal to itself", r.Key)
			}
			roundTrip(t, r)
		}
		for _, p := range problems {
			if p.Message == "" || p.Severity == "" || p.At.File != "f" {
				t.Errorf("half a problem: %+v", p)
			}
			_ = p.String()
		}
		again, _ := Parse("f", data)
		if len(again) != len(resources) {
			t.Error("parsed differently the second time")
		}
	})
}
