package config

import (
	"strings"
	"testing"

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
	policies := Parser{}.ParseFile("x.yaml", []byte(text)).Policies
	switch {
	case len(policies) != 1:
		return "no policy"
	case policies[0].Denial == nil:
		return policies[0].undeniable
	}
	spec, _ := prototext.MarshalOptions{}.Marshal(policies[0].Denial.Spec.(proto.Message))
	return policies[0].Denial.Key.String() + " " + strings.ReplaceAll(string(spec), "  ", " ")
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
		"target of an unsupported kind":   {edited("selector: {matchLabels: {app: till}}", "targetRefs: [{kind: Service, group: core, name: till}]"), `its target is a Service, but this mesh has no waypoints: only a Gateway of gateway.networking.k8s.io can be a target`},
		"single target of such a kind":    {edited("selector: {matchLabels: {app: till}}", "targetRef: {kind: GatewayClass, group: gateway.networking.k8s.io, name: x}"), `its target is a GatewayClass, but this mesh has no waypoints: only a Gateway of gateway.networking.k8s.io can be a target`},
		"no selector":                     {edited("  selector: {matchLabels: {app: till}}\n", ""), all},
		"no spec, and a bad label":        {edited("{name: guard, namespace: shop}", "{name: guard, namespace: shop, labels: {-: x}}")[:strings.Index(brokenPolicy, "spec:")+len(", labels: {-: x}")], all},
		"mutual TLS":                      {peer, strict},
		"mutual TLS of a port":            {strings.Replace(peer, "mtls: {mode: STRICKT}", "portLevelMtls: {99999: {mode: DISABLE}}", 1), strict},
		"mutual TLS of a namespace":       {strings.Replace(peer, "selector: {matchLabels: {app: till}}, ", "", 1), "PeerAuthentication shop/mtls mtls:{mode:STRICT}"},
		"selector with a wildcard":        {edited("app: till", "app: ti*"), "its selector or targets cannot be read (spec.selector.matchLabels[app])"},
		"selector without matchLabels":    {edited("{matchLabels: {app: till}}", "{app: till}"), "its selector or targets cannot be read (spec.selector.app)"},
		"selector that is a list":         {edited("{matchLabels: {app: till}}", "[app]"), "its selector or targets cannot be read (spec.selector)"},
		"label written twice":             {edited("{app: till}", "{app: till, app: shelf}"), "its selector or targets cannot be read (app)"},
		"selector and targets":            {edited("action", "targetRef: {kind: Gateway, name: x}\n  action"), "its selector or targets cannot be read (spec.selector)"},
		"misspelt selector":               {edited("selector", "selectr"), "its selector or targets cannot be read (selectr)"},
		"selector as of other kinds":      {edited("selector", "workloadSelector"), "its selector or targets cannot be read (workloadSelector)"},
		"selector outside of the spec":    {edited("spec:\n  selector", "selector: {}\nspec:\n  # selector"), "its selector or targets cannot be read (selector)"},
		"spec that is a list":             {"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: mtls}\nspec: []\n", "its selector or targets cannot be read (spec)"},
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
	two := Parser{}.ParseFile("x.yaml", []byte(named+"---\n"+named)).Policies
	if len(two) != 2 || two[0].Denial == nil || two[1].Denial == nil || two[0].Key == two[1].Key || !dnsSubdomain.MatchString(two[0].Key.Name) {
		t.Fatalf("got %+v", two)
	}
}
