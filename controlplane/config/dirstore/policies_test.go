package dirstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const brokenPolicy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: guard, namespace: shop}
spec:
  selector: {matchLabels: {app: till}}
  action: DENI
  rules: [{to: [{operation: {methods: [POST]}}]}]
`

// readPolicies returns a store of one file, and a function that replaces the file's text and reads it again.
func readPolicies(t *testing.T, on config.OnInvalidPolicy, text string) (*Store, func(string)) {
	t.Helper()
	file, now := filepath.Join(t.TempDir(), "a.yaml"), time.Now()
	write(t, file, text)
	s, err := New(Config{Paths: []string{file}, OnInvalidPolicy: on, Now: func() time.Time { return now }})
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
func codesOf(s *Store) string {
	var codes []string
	for _, p := range s.Problems() {
		if p.Code != config.InvalidValue && p.Code != config.NoSuchField {
			codes = append(codes, string(p.Code))
		}
	}
	return strings.Join(codes, " ")
}

func TestDenialEndsWithItsDocument(t *testing.T) {
	key := config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "guard"}
	good := strings.Replace(brokenPolicy, "DENI", "DENY", 1)
	for name, c := range map[string]struct {
		edits  []string
		denied bool
		state  config.DocumentState
		codes  string
	}{
		"nothing else":                            {nil, true, config.Denied, "PF0213"},
		"a corrected document":                    {[]string{good}, false, config.InForce, ""},
		"a document corrected and broken again":   {[]string{good, brokenPolicy}, false, config.Stale, ""},
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
			var state config.DocumentState
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
	r := s.Get(config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "guard"})
	if r == nil || !strings.Contains(prototext.Format(r.Spec.(proto.Message)), "shelf") {
		t.Errorf("in force is %+v", r)
	}
}

func TestGoodVersionOfAnotherFileIsPreferredToADenial(t *testing.T) {
	s, err := New(Config{Paths: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	dir, key := s.cfg.Paths[0], config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "guard"}
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
	s, err := New(Config{Paths: []string{dir}, LastGood: file})
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	s.scan(nil)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file of last accepted versions is there: %v", err)
	}
}

func TestInvalidPoliciesCanBeIgnored(t *testing.T) {
	s, _ := readPolicies(t, config.IgnoreInvalid, brokenPolicy)
	if r := s.Get(config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "guard"}); r != nil || codesOf(s) != "PF0213" {
		t.Errorf("in force is %+v, findings %v", r, s.Problems())
	}
	for _, p := range s.Problems() {
		if p.Code == config.PolicyNeverAccepted && !strings.Contains(p.Message, "protects nothing") {
			t.Errorf("the finding is %s", p)
		}
	}
	var o config.OnInvalidPolicy
	if o.Set("allow") == nil || o.String() != "deny" || o.Set("ignore") != nil || o.String() != "ignore" {
		t.Errorf("the flag is %q", o)
	}
}

func TestFindingNamesFieldRemedyAndWhatIsDenied(t *testing.T) {
	s, _ := readPolicies(t, "", brokenPolicy)
	for _, p := range s.Problems() {
		if p.Code != config.PolicyNeverAccepted {
			continue
		}
		for _, part := range []string{"a.yaml:6:", "AuthorizationPolicy shop/guard", "spec.action", "workloads labelled app=till of namespace shop are denied", "correct the field", "--on-invalid-policy=ignore"} {
			if !strings.Contains(p.String(), part) {
				t.Errorf("%q is not in %s", part, p)
			}
		}
		if p.Severity != config.Error {
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
		if p.Code == config.PolicyNeverAccepted && strings.Contains(p.Message, "to Gateway edge in namespace shop are denied") {
			return
		}
	}
	t.Errorf("findings are %v", s.Problems())
}

func TestTextsDenyWhatRefusedPoliciesSelect(t *testing.T) {
	key := config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "guard"}
	files := []File{{"a.yaml", brokenPolicy}}
	store, problems := ReadTexts(files, config.Parser{}, nil)
	if r := store.Get(key); r == nil || !r.Denial || problems[len(problems)-1].Code != config.PolicyNeverAccepted {
		t.Errorf("in force would be %+v, problems %v", r, problems)
	}
	good := []File{{"a.yaml", strings.Replace(brokenPolicy, "DENI", "DENY", 1)}}
	now, _ := ReadTexts(good, config.Parser{}, nil)
	if store, _ = ReadTexts(files, config.Parser{}, now); store.Get(key) == nil || store.Get(key).Denial {
		t.Errorf("in force would be %+v", store.Get(key))
	}
}
