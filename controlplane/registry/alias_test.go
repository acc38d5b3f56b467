package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func externalName(name, namespace, to string, more ...string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {type: ExternalName, externalName: %s%s}}",
		name, namespace, to, strings.Join(more, ""))
}

// aliases lists the aliases of a registry, each with its service.
func aliases(r *Registry) string {
	var out []string
	for _, s := range r.Services {
		for _, alias := range s.AliasServices {
			out = append(out, fmt.Sprintf("%s.%s is %s", alias.Name, alias.Namespace, s.Hostname))
		}
	}
	return strings.Join(out, ", ")
}

func TestExternalNameIsAnAliasOfAService(t *testing.T) {
	const (
		httpPort = ", ports: [{name: http, port: 9080}]"
		entry    = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e}, spec: {hosts: [a.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}}"
	)
	for name, c := range map[string]struct {
		documents []string
		services  int // number of services except reviews
		aliases   string
		problem   string
	}{
		"of a Service":                       {[]string{externalName("a", "other", host)}, 0, "a.other is " + host, ""},
		"with a trailing dot":                {[]string{externalName("a", "other", host+".")}, 0, "a.other is " + host, ""},
		"with a port of the Service":         {[]string{externalName("a", "other", host, httpPort)}, 0, "a.other is " + host, ""},
		"with a port that the Service lacks": {[]string{externalName("a", "other", host, ", ports: [{port: 80}]")}, 0, "a.other is " + host, `Service other/a: spec.ports[0].port: "80": ` + host + " has no such port"},
		"of a ServiceEntry":                  {[]string{entry, externalName("a", "other", "a.example.com")}, 1, "a.other is a.example.com", ""},
		"of an alias": {[]string{externalName("a", "x", "b.y.svc.cluster.local"), externalName("b", "y", "c.z.svc.cluster.local"), externalName("c", "z", host)}, 0,
			"a.x is " + host + ", b.y is " + host + ", c.z is " + host, ""},
		"of an alias of an external host": {[]string{externalName("a", "x", "b.y.svc.cluster.local"), externalName("b", "y", "b.example.com", httpPort)}, 1, "a.x is b.y.svc.cluster.local", ""},
		"outside":                         {[]string{externalName("a", "x", "b.example.com", httpPort)}, 1, "", ""},
		"outside without ports":           {[]string{externalName("a", "x", "b.example.com")}, 1, "", "Service x/a: spec.ports"},
		"of itself":                       {[]string{externalName("a", "x", "a.x.svc.cluster.local")}, 0, "", `Service x/a: spec.externalName: "a.x.svc.cluster.local": the name is part of a cycle`},
		"of a missing service":            {[]string{externalName("a", "x", "b.y.svc.cluster.local", httpPort)}, 1, "", `Service x/a: spec.externalName: "b.y.svc.cluster.local": no service has this name`},
		"by a short name":                 {[]string{externalName("a", "x", "reviews.default.svc", httpPort)}, 1, "", `Service x/a: spec.externalName: "reviews.default.svc": this is a short name`},
	} {
		t.Run(name, func(t *testing.T) {
			r := build(t, append(c.documents, reviews)...)
			if got := aliases(r); got != c.aliases {
				t.Errorf("aliases: %s, want %s", got, c.aliases)
			}
			if len(r.Services) != 1+c.services {
				t.Errorf("%d services, want %d", len(r.Services), 1+c.services)
			}
			if got := problems(r); (got == "") != (c.problem == "") || !strings.Contains(got, c.problem) {
				t.Errorf("problems: %s\nwant: %s", got, c.problem)
			}
		})
	}
}

// Aliases of a name in a cycle do not resolve either.
func TestCyclicAliasesDoNotResolve(t *testing.T) {
	documents := []string{reviews, externalName("into", "x", "a0.x.svc.cluster.local")}
	for i := range 3 {
		documents = append(documents, externalName(fmt.Sprintf("a%d", i), "x", fmt.Sprintf("a%d.x.svc.cluster.local", (i+1)%3)))
	}
	r := build(t, documents...)
	if len(r.Services) != 1 || aliases(r) != "" || len(r.Problems) != 4 {
		t.Errorf("%d services, aliases %q, problems:\n%s", len(r.Services), aliases(r), problems(r))
	}
	for _, p := range r.Problems {
		if p.Code != config.UnknownHost {
			t.Errorf("%s has the code %s", p, p.Code)
		}
	}
}

// A rule for an alias does not apply to the alias's service. Destinations of routes are an exception: there an alias
// stands for its service.
func TestRulesForAnAliasDoNotApplyToItsService(t *testing.T) {
	const full = "a.other.svc.cluster.local"
	r := build(t, reviews, externalName("a", "other", host))
	for _, c := range [][2]string{{"a", "other"}, {"a.other", "x"}, {"a.other.svc", "x"}, {full, "x"}, {full + ".", "x"}} {
		if got := r.ResolveHostname(c[0], c[1]); got != full {
			t.Errorf("%s resolves to %s in the namespace %s", c[0], got, c[1])
		}
	}
	if got := r.Target(full); got != host {
		t.Errorf("the alias has the target %s", got)
	}
	if got := r.Target(host); got != host {
		t.Errorf("the service has the target %s", got)
	}
}

// Only a change of the alias's own document or target replaces the service.
func TestAliasChangeReplacesOnlyItsService(t *testing.T) {
	const second = "ratings.default.svc.cluster.local"
	store := storeOf(t, reviews, ratings, externalName("a", "other", host))
	before := Build(nil, store, Options{}, nil)
	step := func(document string, same ...string) {
		t.Helper()
		after := Build(before, store, Options{}, put(t, store, document))
		for _, name := range []string{host, second} {
			if kept := service(t, after, name) == service(t, before, name); kept != slices.Contains(same, name) {
				t.Errorf("after %s: the service %s is unchanged: %v", document, name, kept)
			}
		}
		if want := aliases(Build(nil, store, Options{}, nil)); aliases(after) != want {
			t.Errorf("after %s: aliases %s, want %s", document, aliases(after), want)
		}
		before = after
	}
	labelled := strings.Replace(externalName("a", "other", host), "namespace: other", "namespace: other, labels: {x: y}", 1)
	step(labelled, host, second)
	step(externalName("b", "other", second), host)
	step(externalName("a", "other", second))
	step(externalName("a", "other", "a.example.com", ", ports: [{port: 80}]"), host)
	step(strings.Replace(reviews, "{name: reviews}", "{name: reviews, labels: {x: y}}", 1), host, second)
}
