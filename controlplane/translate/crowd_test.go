package translate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
)

// crowd makes documents of a mesh in which services, rules and policies want the same few names, addresses and ports.
type crowd struct {
	*rand.Rand
	makers []func(crowd) string
	there  []string // what can be taken away, or put a second time
}

// newCrowd is a crowd of which each seed makes other kinds of documents: among few kinds more comes together.
func newCrowd(seed uint64) *crowd {
	c := &crowd{Rand: rand.New(rand.NewPCG(seed, 11))}
	c.makers = append(c.makers, crowdServices...)
	share := 1 + c.IntN(4)
	for _, list := range [][]func(crowd) string{crowdRules, crowdPolicies} {
		for _, maker := range list {
			if c.IntN(4) < share {
				c.makers = append(c.makers, maker)
			}
		}
	}
	return c
}

// edit is a document that is valid by itself, or what says that one is taken away, or another state of what is no document.
func (c *crowd) edit() string {
	if len(c.there) > 0 && c.IntN(3) == 0 {
		return c.there[c.IntN(len(c.there))]
	}
	for {
		text := c.makers[c.IntN(len(c.makers))](*c)
		if !strings.HasPrefix(text, "apiVersion") {
			return text
		}
		text = withCertificates(text)
		if !invalid(text) {
			c.there = append(c.there, named(text))
			return text
		}
	}
}

func invalid(document string) bool {
	_, problems := config.Parser{Check: envoyfilter.Check}.Parse("test.yaml", []byte(document))
	for _, p := range problems {
		if p.Severity == config.Error {
			return true
		}
	}
	return false
}

// named is by what a document is taken away: its kind, namespace and name.
func named(document string) string {
	_, kind, _ := strings.Cut(document, "kind: ")
	kind, _, _ = strings.Cut(kind, "\n")
	_, name, _ := strings.Cut(document, "name: ")
	name, namespace, _ := strings.Cut(name, ", namespace: ")
	return kind + " " + namespace[:strings.IndexAny(namespace, ",}")] + "/" + name
}

func (c crowd) of(list ...string) string { return list[c.IntN(len(list))] }

func (c crowd) maybe(text string) string { return c.of(text, "") }

func (c crowd) rarely(text string) string { return c.of(text, "", "", "") }

// some are a few of the fields, none twice, each with what separates it from what comes behind.
func (c crowd) some(fields ...string) (text string) {
	for _, i := range c.Perm(len(fields))[:c.IntN(4)] {
		text += fields[i] + ", "
	}
	return text
}

func (c crowd) namespace() string { return c.of("one", "two") }

// anyNamespace may have proxies without services, or be the root namespace.
func (c crowd) anyNamespace() string { return c.of("one", "two", "three", "istio-system") }

func (c crowd) host() string {
	return c.of("a.example", "b.example", "c.sub.example", "*.example", "*.sub.example", "*", "red", "red.one", "red.one.svc",
		"red.one.svc.cluster.local", "blue.two.svc.cluster.local", "blue", "240.9.9.1", "x.example", "ext.one.svc.cluster.local",
		"ext", "one", "a", "*.local", "*.one.svc.cluster.local", "ext.two", "other.one.svc", "other")
}

// destination is of a route: a host that stands for one alone.
func (c crowd) destination() string {
	host := strings.TrimPrefix(c.host(), "*.")
	if host == "*" {
		host = "a.example"
	}
	return fmt.Sprintf("{host: %q%s%s}", host, c.of("", "", ", subset: v1", ", subset: v2"), c.of("", "", ", port: {number: 80}", ", port: {number: 81}"))
}

func (c crowd) route() string {
	if c.IntN(4) == 0 {
		return fmt.Sprintf("{destination: %s, weight: 30}, {destination: %s, weight: 70}", c.destination(), c.destination())
	}
	return "{destination: " + c.destination() + "}"
}

func (c crowd) exported() string {
	return c.of("", "", "", `exportTo: ["."], `, `exportTo: ["two"], `, `exportTo: ["*"], `)
}

func (c crowd) labels() string { return c.of("{app: a}", "{app: b}", "{app: a, version: v1}") }

// selector is of policies: all, some of the namespace, or what is referred to.
func (c crowd) selector() string {
	return c.of("", "", "selector: {matchLabels: "+c.labels()+"}, ", "targetRefs: [{kind: Service, group: '', name: red}], ",
		"targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], ",
		"targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: s1}], ", "selector: {matchLabels: {istio: edge}}, ")
}

func (c crowd) ports(number, protocol string) string {
	var out []string
	for i, at := range []int{80, 81, 90} {
		if i == 0 || c.IntN(2) == 0 {
			out = append(out, fmt.Sprintf("{%s: %d, name: p%[2]d, %s: %q}", number, at, protocol, c.of("HTTP", "HTTP", "HTTP2", "TCP", "TLS", "")))
		}
	}
	return strings.Join(out[c.IntN(len(out)):], ", ")
}

func ofNetworking(kind, name, namespace, spec string) string {
	return document("networking.istio.io/v1", kind, name, namespace, spec)
}

func document(version, kind, name, namespace, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {%s}", version, kind, name, namespace, spec)
}

// numbered is one of a few names.
func (c crowd) numbered(prefix string, n int) string { return fmt.Sprintf("%s%d", prefix, c.IntN(n)) }

// crowdServices are edits of what can be called.
var crowdServices = []func(crowd) string{
	crowd.service, crowd.service, crowd.service, crowd.externalName, crowd.externalName, crowd.serviceOfDatagrams,
	crowd.entry, crowd.entry, crowd.entryOfWorkloads, crowd.entryOfWorkloads, crowd.entryByName, crowd.entryOfAny,
	crowd.workload, crowd.workload,
}

func (c crowd) service() string {
	exported := c.of("", "", "", `, annotations: {networking.istio.io/exportTo: "."}`, `, annotations: {networking.istio.io/exportTo: "two"}`)
	text := document("v1", "Service", c.of("red", "blue", "a", "sub"), c.namespace()+exported,
		fmt.Sprintf("clusterIP: %s, selector: %s, ports: [%s]", c.of("None", "None", "240.9.9.1", "240.9.9.2"), c.labels(), c.ports("port", "appProtocol")))
	return text
}

// externalName is another name of a service, or of another such, or leads outside.
func (c crowd) externalName() string {
	exported := c.of("", "", "", `, annotations: {networking.istio.io/exportTo: "."}`, `, annotations: {networking.istio.io/exportTo: "two"}`)
	return document("v1", "Service", c.of("ext", "ext", "other", "red"), c.namespace()+exported, fmt.Sprintf("type: ExternalName, externalName: %s%s",
		c.of("a.example", "red.one.svc.cluster.local", "red.one.svc.cluster.local", "blue.two.svc.cluster.local", "other.example.net",
			"ext.one.svc.cluster.local", "ext.two.svc.cluster.local", "other.one.svc.cluster.local", "red.one.svc"),
		c.of("", ", ports: [{port: 80, name: http}]", ", ports: [{port: 81, name: http}]")))
}

func (c crowd) serviceOfDatagrams() string {
	return document("v1", "Service", "udp", c.namespace(), fmt.Sprintf("clusterIP: %s, selector: {app: a}, ports: [{port: 80, name: u, protocol: UDP}, %s]",
		c.of("240.9.9.1", "240.9.9.5", "None"), c.of("{port: 80, name: http}", "{port: 81, name: tcp}", "{port: 90, name: x, targetPort: named}")))
}

func (c crowd) entry() string {
	return ofNetworking("ServiceEntry", c.numbered("s", 6), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: STATIC, %sports: [%s]%s", c.host(),
		c.of("", "", "addresses: [240.9.9.1], ", "addresses: [240.9.9.2], ", `exportTo: ["."], `), c.ports("number", "protocol"), c.maybe(", endpoints: [{address: 10.0.0.1}]")))
}

func (c crowd) entryOfWorkloads() string {
	return ofNetworking("ServiceEntry", c.numbered("w", 4), c.namespace(), fmt.Sprintf("hosts: [%q%s], location: %s, resolution: STATIC, %s%s%sworkloadSelector: {labels: %s}, ports: [%s]",
		c.of("a.example", "b.example", "c.sub.example", "red.one.svc.cluster.local", "red"), c.maybe(", x.example"), c.of("MESH_INTERNAL", "MESH_EXTERNAL"), c.exported(),
		c.of("", "addresses: [240.9.9.1], ", "addresses: [240.9.9.2, 240.9.9.3], ", "addresses: [240.9.9.0/24], "),
		c.rarely("subjectAltNames: ['spiffe://cluster.local/ns/one/sa/a'], "), c.labels(), c.ports("number", "protocol")))
}

func (c crowd) entryByName() string {
	return ofNetworking("ServiceEntry", c.numbered("d", 4), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: %s, location: MESH_EXTERNAL, %sports: [%s]%s",
		c.of("a.example", "b.example", "d.example"), c.of("DNS", "DNS_ROUND_ROBIN"), c.exported(), c.ports("number", "protocol"), c.rarely(", endpoints: [{address: other.example}]")))
}

// entryOfAny has no endpoints of its own: where a request goes is its own word.
func (c crowd) entryOfAny() string {
	return ofNetworking("ServiceEntry", c.numbered("n", 3), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: %s, location: MESH_EXTERNAL, ports: [%s]",
		c.of("*.example", "b.example", "*.other.example", "*.wild.example"), c.of("NONE", "NONE", "DYNAMIC_DNS"), c.ports("number", "protocol")))
}

func (c crowd) workload() string {
	return ofNetworking("WorkloadEntry", c.numbered("we", 5), c.namespace(), fmt.Sprintf("address: 127.193.1.%d, %s%sserviceAccount: %s, labels: {app: %s, version: %s%s}%s",
		1+c.IntN(5), c.rarely("ports: {p80: 8080}, "), c.rarely("network: elsewhere, "), c.of("a", "b"), c.of("a", "b"), c.of("v1", "v2"), c.maybe(", security.istio.io/tlsMode: istio"), c.rarely(", locality: r1/z1, weight: 3")))
}
