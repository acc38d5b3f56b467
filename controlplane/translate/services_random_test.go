package translate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// crowd makes documents of a mesh in which services and rules want the same few names, addresses and ports.
type crowd struct{ *rand.Rand }

func (c crowd) of(list ...string) string { return list[c.IntN(len(list))] }

func (c crowd) host() string {
	return c.of("a.example", "b.example", "c.sub.example", "*.example", "*.sub.example", "red", "red.one", "red.one.svc.cluster.local", "blue.two.svc.cluster.local", "240.9.9.1")
}

func (c crowd) namespace() string { return c.of("one", "two") }

func (c crowd) ports(number, protocol string) string {
	var out []string
	for i, at := range []int{80, 81, 90} {
		if i == 0 && len(out) == 0 || c.IntN(2) == 0 {
			out = append(out, fmt.Sprintf("{%s: %d, name: p%[2]d, %s: %q}", number, at, protocol, c.of("HTTP", "HTTP", "HTTP2", "TCP", "TLS", "")))
		}
	}
	return strings.Join(out[c.IntN(len(out)):], ", ")
}

// document is one that another of its name may follow.
func (c crowd) document() string {
	i, namespace := c.IntN(6), c.namespace()
	switch c.IntN(6) {
	case 0:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {clusterIP: %s, selector: {app: x%d}, ports: [%s]}",
			c.of("red", "blue", "a"), namespace, c.of("None", "240.9.9.1", "240.9.9.2"), i, c.ports("port", "appProtocol"))
	case 1, 2:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s%d, namespace: %s}\nspec: {hosts: [%q], resolution: %s, %sports: [%s]%s}",
			i, namespace, c.host(), "STATIC", c.of("", "", "addresses: [240.9.9.1], ", "addresses: [240.9.9.2], ", "exportTo: [\".\"], "), c.ports("number", "protocol"), c.of("", ", endpoints: [{address: 10.0.0.1}]"))
	case 3:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: n%d, namespace: %s}\nspec: {hosts: [%q], resolution: NONE, ports: [%s]}",
			i%2, namespace, c.of("*.example", "b.example", "*.other.example"), c.ports("number", "protocol"))
	}
	return c.rule(i, namespace)
}

func (c crowd) rule(i int, namespace string) string {
	head := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v%d, namespace: %s}\n", i, namespace)
	to := fmt.Sprintf("{destination: {host: %q}}", strings.TrimPrefix(c.host(), "*."))
	switch c.IntN(6) {
	case 0:
		return head + fmt.Sprintf("spec: {hosts: [%q], tcp: [{route: [%s]}]}", c.host(), to)
	case 1:
		host := c.of("a.example", "c.sub.example")
		return head + fmt.Sprintf("spec: {hosts: [%s], tls: [{match: [{sniHosts: [%[1]s]}], route: [%s]}]}", host, to)
	case 2:
		return head + fmt.Sprintf("spec: {hosts: [%q], http: [{route: [%s], mirror: {host: %q}}]}", c.host(), to, c.of("b.example", "blue.two.svc.cluster.local"))
	case 3:
		return head + fmt.Sprintf("spec: {hosts: [%q], http: [{delegate: {name: part, namespace: one}}]}", c.host())
	case 4:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: part, namespace: one}\nspec: {http: [{route: [%s]}]}", to)
	}
	return head + fmt.Sprintf("spec: {hosts: [%q, %q], http: [{match: [{sourceLabels: {app: a}}], route: [%s]}, {route: [%[3]s]}]}", c.host(), "x"+c.of("", ".example"), to)
}

// alwaysThere has listeners lead to the routes of each port, whatever else there is.
const alwaysThere = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: last, namespace: one}
spec: {hosts: [zzz.last], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: b, protocol: HTTP}, {number: 90, name: c, protocol: HTTP2}]}
`

// TestServicesThatComeAndGoTouchAllThatTheyHaveAPartIn: where several want the same names, addresses and ports, what one of
// them leaves is another's, and none of that is missed.
func TestServicesThatComeAndGoTouchAllThatTheyHaveAPartIn(t *testing.T) {
	descriptions := []string{
		"sidecar captured.one 127.175.24.1 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
		"sidecar captured.two 127.175.24.2 app=b INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
		"sidecar whole.one 127.175.24.3 app=b INTERCEPTION_MODE=REDIRECT",
	}
	touched, whole := 0, 0
	for seed := range uint64(6) {
		c, m := crowd{rand.New(rand.NewPCG(seed, 7))}, newTestMesh(t, nil, alwaysThere)
		before := map[string]map[string]map[string]string{}
		for _, d := range descriptions {
			before[d] = versions(t, m.snap, proxy(t, d))
		}
		var there []string
		for step := range 60 {
			text := c.document()
			if len(there) > 0 && c.IntN(3) == 0 {
				text = there[c.IntN(len(there))]
			}
			change := m.step(text)
			if strings.HasPrefix(text, "apiVersion") {
				there = append(there, named(text))
			}
			for _, d := range descriptions {
				p := proxy(t, d)
				after, touches := versions(t, m.snap, p), translate.Affected(m.snap, p, change)
				what := fmt.Sprintf("seed %d, step %d: %s\nfor %s", seed, step, text, d)
				checkAffected(t, what, before[d], after, touches)
				checkNamed(t, what, m.snap, p, after, touches)
				before[d] = after
				touched++
				if touches[xds.VirtualHostType].All {
					whole++
				}
			}
			if t.Failed() {
				return
			}
		}
	}
	if whole == 0 || whole > touched*3/4 {
		t.Errorf("of %d changes %d touched all virtual hosts: that tells little", touched, whole)
	}
}

// named is by what a document is taken away: its kind, namespace and name.
func named(document string) string {
	_, kind, _ := strings.Cut(document, "kind: ")
	kind, _, _ = strings.Cut(kind, "\n")
	_, name, _ := strings.Cut(document, "name: ")
	name, namespace, _ := strings.Cut(name, ", namespace: ")
	namespace, _, _ = strings.Cut(namespace, "}")
	return kind + " " + namespace + "/" + name
}
