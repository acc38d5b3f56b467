package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

const brokenPolicy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: guard, namespace: shop}
spec:
  selector: {matchLabels: {app: till}}
  action: DENI
  rules: [{to: [{operation: {methods: [POST]}}]}]
`

// denial returns what a document's denial would be, as text, or why there is none.
func denial(text string) string {
	policies := Parser{}.parse("x.yaml", []byte(text)).policies
	switch {
	case len(policies) != 1:
		return "no policy"
	case policies[0].denial == nil:
		return policies[0].undeniable
	}
	spec, _ := prototext.MarshalOptions{}.Marshal(policies[0].denial.Spec.(proto.Message))
	return policies[0].denial.Key.String() + " " + strings.ReplaceAll(string(spec), "  ", " ")
}

func TestRefusedPolicyDeniesWhatItSelects(t *testing.T) {
	const till = `AuthorizationPolicy shop/guard selector:{match_labels:{key:"app" value:"till"}} rules:{} action:DENY`
	const strict = `PeerAuthentication shop/mtls selector:{match_labels:{key:"app" value:"till"}} mtls:{mode:STRICT}`
	const all = `AuthorizationPolicy shop/guard rules:{} action:DENY`
	edited := func(old, new string) string {
		if !strings.Contains(brokenPolicy, old) {
			t.Fatalf("the policy has no %q", old)
		}
		return strings.Replace(brokenPolicy, old, new, 1)
	}
	peer := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: mtls, namespace: shop}\nspec: {selector: {matchLabels: {app: till}}, mtls: {mode: STRICKT}}\n"
	for name, c := range map[string]struct{ text, want string }{
		"unknown action":                  {brokenPolicy, till},
		"unknown field":                   {edited("action: DENI", "acton: DENY"), till},
		"unknown field of a rule":         {edited("DENI", "DENY\n  rulez: []"), till},
		"unknown API version":             {edited("/v1\n", "/v9\n"), till},
		"API group of another kind":       {edited("security.istio.io/v1", "networking.istio.io/v1"), till},
		"no API version":                  {edited("apiVersion: security.istio.io/v1\n", ""), till},
		"key written twice":               {edited("action: DENI", "action: DENY\n  action: ALLOW"), till},
		"unknown field next to the spec":  {brokenPolicy + "sepc: {}\n", till},
		"item of a list":                  {`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "mtls", "namespace": "shop"}, "spec": {"selector": {"matchLabels": {"app": "till"}}, "mtls": {"mode": 7}}}]}`, strict},
		"targets":                         {edited("selector: {matchLabels: {app: till}}", "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}]"), `AuthorizationPolicy shop/guard targetRefs:{group:"gateway.networking.k8s.io" kind:"Gateway" name:"edge"} rules:{} action:DENY`},
		"target of an unsupported kind":   {edited("selector: {matchLabels: {app: till}}", "targetRefs: [{kind: Service, group: core, name: till}]"), `its target is a Service, and there are no waypoints here: only a Gateway of gateway.networking.k8s.io can be a target`},
		"single target of such a kind":    {edited("selector: {matchLabels: {app: till}}", "targetRef: {kind: GatewayClass, group: gateway.networking.k8s.io, name: x}"), `its target is a GatewayClass, and there are no waypoints here: only a Gateway of gateway.networking.k8s.io can be a target`},
		"no selector":                     {edited("  selector: {matchLabels: {app: till}}\n", ""), all},
		"no spec, and a bad label":        {edited("{name: guard, namespace: shop}", "{name: guard, namespace: shop, labels: {-: x}}")[:strings.Index(brokenPolicy, "spec:")+len(", labels: {-: x}")], all},
		"mutual TLS":                      {peer, strict},
		"mutual TLS of a port":            {strings.Replace(peer, "mtls: {mode: STRICKT}", "portLevelMtls: {99999: {mode: DISABLE}}", 1), strict},
		"mutual TLS of a namespace":       {strings.Replace(peer, "selector: {matchLabels: {app: till}}, ", "", 1), "PeerAuthentication shop/mtls mtls:{mode:STRICT}"},
		"selector with a wildcard":        {edited("app: till", "app: ti*"), "what it selects cannot be read (spec.selector.matchLabels[app])"},
		"selector without matchLabels":    {edited("{matchLabels: {app: till}}", "{app: till}"), "what it selects cannot be read (spec.selector.app)"},
		"selector that is a list":         {edited("{matchLabels: {app: till}}", "[app]"), "what it selects cannot be read (spec.selector)"},
		"label written twice":             {edited("{app: till}", "{app: till, app: shelf}"), "what it selects cannot be read (app)"},
		"selector and targets":            {edited("action", "targetRef: {kind: Gateway, name: x}\n  action"), "what it selects cannot be read (spec.selector)"},
		"misspelt selector":               {edited("selector", "selectr"), "what it selects cannot be read (selectr)"},
		"selector as of other kinds":      {edited("selector", "workloadSelector"), "what it selects cannot be read (workloadSelector)"},
		"selector outside of the spec":    {edited("spec:\n  selector", "selector: {}\nspec:\n  # selector"), "what it selects cannot be read (selector)"},
		"spec that is a list":             {"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: mtls}\nspec: []\n", "what it selects cannot be read (spec)"},
		"namespace that is none":          {edited("namespace: shop", "namespace: Shop_1"), "its namespace cannot be read"},
		"namespace that is a list":        {edited("namespace: shop", "namespace: [shop]"), "its namespace cannot be read"},
		"misspelt namespace":              {edited("namespace: shop", "namespce: shop"), "its namespace cannot be read (metadata.namespce)"},
		"namespace outside the metadata":  {edited(", namespace: shop}", "}\nnamespace: shop"), "its namespace cannot be read (namespace)"},
		"no metadata":                     {edited("metadata: {name: guard, namespace: shop}\n", ""), "it has no metadata"},
		"policy that only logs":           {edited("DENI", "AUDIT\n  x: y"), "no policy"},
		"policy that is tried":            {edited("namespace: shop", `namespace: shop, annotations: {istio.io/dry-run: "true"}`), "no policy"},
		"good policy":                     {edited("DENI", "DENY"), "no policy"},
		"refused document of other kinds": {"apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: x}\nspec: {x: y}\n", "no policy"},
	} {
		if got := denial(c.text); got != c.want {
			t.Errorf("%s: got  %s\nwant %s\nof\n%s", name, got, c.want, c.text)
		}
	}
}

func TestPolicyWithoutAValidNameDenies(t *testing.T) {
	named := strings.Replace(brokenPolicy, "name: guard", "name: Guard_1", 1)
	two := Parser{}.parse("x.yaml", []byte(named+"---\n"+named)).policies
	if len(two) != 2 || two[0].denial == nil || two[1].denial == nil || two[0].key == two[1].key || !dnsSubdomain.MatchString(two[0].key.Name) {
		t.Fatalf("got %+v", two)
	}
}

// readPolicies returns a store of one file, and a function that replaces the file's text and reads it again.
func readPolicies(t *testing.T, on OnInvalidPolicy, text string) (*DirStore, func(string)) {
	t.Helper()
	file, now := filepath.Join(t.TempDir(), "a.yaml"), time.Now()
	write(t, file, text)
	s, err := NewDirStore(DirConfig{Paths: []string{file}, OnInvalidPolicy: on, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return s, func(text string) {
		write(t, file, text)
		s.scan(map[string]bool{file: true})
		now = now.Add(time.Minute) // grace periods of empty and missing files have passed
		s.scan(map[string]bool{file: true})
	}
}

// codesOf returns the codes of a store's findings, without those that every invalid value has.
func codesOf(s *DirStore) string {
	var codes []string
	for _, p := range s.Problems() {
		if p.Code != InvalidValue && p.Code != NoSuchField {
			codes = append(codes, string(p.Code))
		}
	}
	return strings.Join(codes, " ")
}

func TestDenialEndsWithItsDocument(t *testing.T) {
	key := Key{AuthorizationPolicy, "shop", "guard"}
	good := strings.Replace(brokenPolicy, "DENI", "DENY", 1)
	for name, c := range map[string]struct {
		edits  []string
		denied bool
		state  State
		codes  string
	}{
		"nothing else":                            {nil, true, Denied, "PF0213"},
		"a corrected document":                    {[]string{good}, false, InForce, ""},
		"a document corrected and broken again":   {[]string{good, brokenPolicy}, false, Stale, ""},
		"a removed document":                      {[]string{service("a", 80)}, false, "", ""},
		"a removed document, and another refused": {[]string{"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {x: y}\n"}, false, "", ""},
		"an emptied file":                         {[]string{"\n"}, false, "", ""},
		"a text that cannot be read":              {[]string{"a: [\n"}, true, "", "PF0001 PF0213"},
		"a text that can be read again":           {[]string{"a: [\n", service("a", 80)}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, edit := readPolicies(t, "", brokenPolicy)
			for _, text := range c.edits {
				edit(text)
			}
			r := s.Get(key)
			if denied := r != nil && r.Denial; denied != c.denied {
				t.Errorf("the policy in force is %+v", r)
			}
			var state State
			for _, d := range s.Documents() {
				if d.Key == key {
					state = d.State
				}
			}
			if state != c.state || codesOf(s) != c.codes {
				t.Errorf("state %q, findings %v", state, s.Problems())
			}
		})
	}
}

func TestDenialFollowsTheSelector(t *testing.T) {
	s, edit := readPolicies(t, "", brokenPolicy)
	edit(strings.Replace(brokenPolicy, "app: till", "app: shelf", 1))
	r := s.Get(Key{AuthorizationPolicy, "shop", "guard"})
	if r == nil || !strings.Contains(prototext.Format(r.Spec.(proto.Message)), "shelf") {
		t.Errorf("in force is %+v", r)
	}
}

func TestGoodVersionOfAnotherFileIsPreferredToADenial(t *testing.T) {
	s, err := NewDirStore(DirConfig{Paths: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	dir, key := s.cfg.Paths[0], Key{AuthorizationPolicy, "shop", "guard"}
	broken, good := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, broken, brokenPolicy)
	s.scan(nil)
	if r := s.Get(key); r == nil || !r.Denial {
		t.Fatalf("in force is %+v", r)
	}
	write(t, good, strings.Replace(brokenPolicy, "DENI", "DENY", 1))
	s.scan(nil)
	if r := s.Get(key); r == nil || r.Denial || codesOf(s) != "" {
		t.Fatalf("in force is %+v, findings %v", r, s.Problems())
	}
	if err := os.Remove(good); err != nil { // the refused document adopts its last accepted version
		t.Fatal(err)
	}
	s.cfg.Now = func() time.Time { return time.Now().Add(time.Hour) }
	s.scan(nil)
	s.scan(nil)
	if r := s.Get(key); r == nil || r.Denial {
		t.Errorf("in force is %+v", r)
	}
}

func TestDenialIsNotStoredAsALastGoodVersion(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "last-good")
	write(t, filepath.Join(dir, "a.yaml"), brokenPolicy)
	s, err := NewDirStore(DirConfig{Paths: []string{dir}, LastGood: file})
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	s.scan(nil)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file of last good versions is there: %v", err)
	}
}

func TestInvalidPoliciesCanBeIgnored(t *testing.T) {
	s, _ := readPolicies(t, IgnoreInvalid, brokenPolicy)
	if r := s.Get(Key{AuthorizationPolicy, "shop", "guard"}); r != nil || codesOf(s) != "PF0213" {
		t.Errorf("in force is %+v, findings %v", r, s.Problems())
	}
	for _, p := range s.Problems() {
		if p.Code == PolicyNeverAccepted && !strings.Contains(p.Message, "protects nothing") {
			t.Errorf("the finding is %s", p)
		}
	}
	var o OnInvalidPolicy
	if o.Set("allow") == nil || o.String() != "deny" || o.Set("ignore") != nil || o.String() != "ignore" {
		t.Errorf("the flag is %q", o)
	}
}

func TestFindingNamesFieldRemedyAndWhatIsDenied(t *testing.T) {
	s, _ := readPolicies(t, "", brokenPolicy)
	for _, p := range s.Problems() {
		if p.Code != PolicyNeverAccepted {
			continue
		}
		for _, part := range []string{"a.yaml:6:", "AuthorizationPolicy shop/guard", "spec.action", "workloads labelled app=till of namespace shop are denied", "correct the field", "--on-invalid-policy=ignore"} {
			if !strings.Contains(p.String(), part) {
				t.Errorf("%q is not in %s", part, p)
			}
		}
		if p.Severity != Error {
			t.Errorf("the severity is %s", p.Severity)
		}
		return
	}
	t.Errorf("findings are %v", s.Problems())
}

func TestFindingNamesOnlyTargetsThatAreDenied(t *testing.T) {
	targets := "targetRefs: [{kind: Service, group: core, name: till}, {kind: Gateway, group: gateway.networking.k8s.io, name: edge}]"
	s, _ := readPolicies(t, "", strings.Replace(brokenPolicy, "selector: {matchLabels: {app: till}}", targets, 1))
	for _, p := range s.Problems() {
		if p.Code == PolicyNeverAccepted && strings.Contains(p.Message, "to Gateway edge in namespace shop are denied") {
			return
		}
	}
	t.Errorf("findings are %v", s.Problems())
}

func TestTextsDenyWhatRefusedPoliciesSelect(t *testing.T) {
	key := Key{AuthorizationPolicy, "shop", "guard"}
	files := []File{{"a.yaml", brokenPolicy}}
	store, problems := ReadTexts(files, Parser{}, nil)
	if r := store.Get(key); r == nil || !r.Denial || problems[len(problems)-1].Code != PolicyNeverAccepted {
		t.Errorf("in force would be %+v, problems %v", r, problems)
	}
	good := []File{{"a.yaml", strings.Replace(brokenPolicy, "DENI", "DENY", 1)}}
	now, _ := ReadTexts(good, Parser{}, nil)
	if store, _ = ReadTexts(files, Parser{}, now); store.Get(key) == nil || store.Get(key).Denial {
		t.Errorf("in force would be %+v", store.Get(key))
	}
}
