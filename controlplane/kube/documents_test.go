package kube

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// documentFixture is a table of documents and its store.
type documentFixture struct {
	*documentTable
	t     *testing.T
	store config.Store
}

func newDocumentFixture(t *testing.T, kind config.Kind) *documentFixture {
	store, apply := config.NewFileStore()
	return &documentFixture{documentTable: newDocumentTable(kind, config.Parser{}, apply), t: t, store: store}
}

// decode converts the JSON text of an object, as a feed does.
func (f *documentFixture) decode(text string) *object {
	f.t.Helper()
	raw, err := decodeRaw([]byte(text))
	if err != nil {
		f.t.Fatal(err)
	}
	return &object{namespace: raw.Namespace, name: raw.Name, value: parseDocument(f.parser, f.kind, raw)}
}

func (f *documentFixture) state() config.Document {
	f.t.Helper()
	states := f.states()
	if len(states) != 1 {
		f.t.Fatalf("the table has %d documents, want 1", len(states))
	}
	return states[0]
}

const (
	routeHead    = `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"namespace":"shop","name":"reviews","uid":"u","resourceVersion":"7","generation":2,"managedFields":[{"manager":"m","fieldsV1":{"f:spec":{}}}]},`
	validRoute   = routeHead + `"spec":{"hosts":["reviews"],"http":[{"timeout":"1s","route":[{"destination":{"host":"reviews"}}]}]},"status":{"conditions":[]}}`
	editedRoute  = routeHead + `"spec":{"hosts":["reviews"],"http":[{"timeout":"2s","route":[{"destination":{"host":"reviews"}}]}]}}`
	invalidRoute = routeHead + `"spec":{"hosts":["reviews"],"http":[{"timeout":"soon","route":[{"destination":{"host":"reviews"}}]}]}}`
)

func TestRefusedDocumentRetainsItsLastAcceptedVersion(t *testing.T) {
	f := newDocumentFixture(t, config.VirtualService)
	key := config.Key{Kind: config.VirtualService, Namespace: "shop", Name: "reviews"}
	f.put(f.decode(invalidRoute))
	if f.store.Get(key) != nil || f.state().State != config.Refused {
		t.Fatalf("an invalid document is in force; state %v", f.state())
	}
	f.put(f.decode(validRoute))
	accepted := f.store.Get(key)
	if accepted == nil || f.state().State != config.InForce || len(f.problems()) != 0 {
		t.Fatalf("a valid document has the state %v and the problems %v", f.state(), f.problems())
	}
	f.put(f.decode(invalidRoute))
	if !f.store.Get(key).Equal(accepted) || f.state().State != config.Stale {
		t.Errorf("after an invalid edit, the state is %v", f.state())
	}
	problems := f.problems()
	if len(problems) == 0 {
		t.Fatal("an invalid document causes no problem")
	}
	if p := problems[0]; p.Field != "spec.http[0].timeout" || p.At.String() != "VirtualService shop/reviews" || p.Key != key {
		t.Errorf("the problem is %+v, want one of spec.http[0].timeout at VirtualService shop/reviews", p)
	}
	f.replace([]*object{f.decode(editedRoute)})
	if edited := f.store.Get(key); edited == nil || edited.Equal(accepted) || f.state().State != config.InForce {
		t.Errorf("a corrected document has no effect; state %v", f.state())
	}
	f.remove(&object{namespace: "shop", name: "reviews"})
	if f.store.Get(key) != nil || len(f.states()) != 0 {
		t.Error("a removed document is still in force")
	}
}

func TestUnchangedDocumentsCauseNoNotification(t *testing.T) {
	f := newDocumentFixture(t, config.VirtualService)
	f.put(f.decode(validRoute))
	f.store.Subscribe(func(changed []config.Key) { t.Errorf("notified of %v", changed) })
	f.put(f.decode(validRoute))
	f.put(f.decode(strings.Replace(validRoute, `"resourceVersion":"7"`, `"resourceVersion":"8"`, 1)))
	f.replace([]*object{f.decode(validRoute)})
}

func TestNeverAcceptedPolicyDeniesUntilItIsCorrectedOrRemoved(t *testing.T) {
	const (
		head    = `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"namespace":"shop","name":"p"},`
		invalid = head + `"spec":{"selector":{"matchLabels":{"app":"a"}},"action":"PERMIT"}}`
		valid   = head + `"spec":{"selector":{"matchLabels":{"app":"a"}},"action":"ALLOW","rules":[{}]}}`
	)
	f := newDocumentFixture(t, config.AuthorizationPolicy)
	key := config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "p"}
	f.put(f.decode(invalid))
	if r := f.store.Get(key); r == nil || !r.Denial || f.state().State != config.Denied {
		t.Fatalf("an invalid policy has the state %v, want a denial", f.state())
	}
	f.replace(nil)
	if f.store.Get(key) != nil {
		t.Error("the denial of a removed policy is in force")
	}
	f.put(f.decode(invalid))
	f.put(f.decode(valid))
	if r := f.store.Get(key); r == nil || r.Denial {
		t.Error("the denial of a corrected policy is in force")
	}
}

func TestDefinitionVersion(t *testing.T) {
	const established = `"status":{"conditions":[{"type":"Established","status":"True"}]}`
	head := `{"spec":{"group":"networking.istio.io","names":{"kind":"Gateway","plural":"gateways"},"versions":[`
	for name, test := range map[string]struct{ text, want string }{
		"storage version":                  {head + `{"name":"v1alpha3","served":true},{"name":"v1","served":true,"storage":true}]},` + established + `}`, "v1"},
		"storage version that is not read": {head + `{"name":"v1","served":true},{"name":"v9","served":true,"storage":true}]},` + established + `}`, "v1"},
		"version that is not served":       {head + `{"name":"v1","served":false,"storage":true},{"name":"v1beta1","served":true}]},` + established + `}`, "v1beta1"},
		"not established":                  {head + `{"name":"v1","served":true,"storage":true}]},"status":{}}`, ""},
		"other group":                      {strings.Replace(head, "networking.istio.io", "gateway.networking.k8s.io", 1) + `{"name":"v1","served":true,"storage":true}]},` + established + `}`, ""},
	} {
		d, err := parseDefinition([]byte(test.text))
		if err != nil {
			t.Fatal(err)
		}
		if d.version != test.want {
			t.Errorf("%s: version %q, want %q", name, d.version, test.want)
		}
	}
}
