package translate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
)

// documentGenerator generates documents. Services, rules and policies use the same few names, addresses and ports, so
// that they conflict often.
type documentGenerator struct {
	*rand.Rand
	makers []func(documentGenerator) string
	there  []string // existing documents, which can be removed or added again
}

// newDocumentGenerator returns a generator. Each seed selects some kinds of documents: with few kinds, more conflicts
// occur.
func newDocumentGenerator(seed uint64) *documentGenerator {
	c := &documentGenerator{Rand: rand.New(rand.NewPCG(seed, 11))}
	c.makers = append(c.makers, serviceGenerators...)
	if c.IntN(2) == 0 {
		c.makers = append(c.makers, clusterGenerators...)
	}
	share := 1 + c.IntN(4)
	for _, list := range [][]func(documentGenerator) string{ruleGenerators, policyGenerators} {
		for _, maker := range list {
			if c.IntN(4) < share {
				c.makers = append(c.makers, maker)
			}
		}
	}
	return c
}

// edit returns a valid document, the removal of one, or a change of the mesh configuration or of issuers' keys.
func (c *documentGenerator) edit() string {
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
			c.there = append(c.there, deletionOf(text))
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

// deletionOf returns the removal of a document: its kind, namespace and name.
func deletionOf(document string) string {
	_, kind, _ := strings.Cut(document, "kind: ")
	kind, _, _ = strings.Cut(kind, "\n")
	_, name, _ := strings.Cut(document, "name: ")
	name, namespace, _ := strings.Cut(name, ", namespace: ")
	return kind + " " + namespace[:strings.IndexAny(namespace, ",}")] + "/" + name
}

func (c documentGenerator) pick(list ...string) string { return list[c.IntN(len(list))] }

func (c documentGenerator) maybe(text string) string { return c.pick(text, "") }

func (c documentGenerator) rarely(text string) string { return c.pick(text, "", "", "") }

// pickFields returns a random subset of the fields with their separators.
func (c documentGenerator) pickFields(fields ...string) (text string) {
	for _, i := range c.Perm(len(fields))[:c.IntN(4)] {
		text += fields[i] + ", "
	}
	return text
}

func (c documentGenerator) namespace() string { return c.pick("one", "two") }

// anyNamespace returns a namespace, possibly without services or the root namespace.
func (c documentGenerator) anyNamespace() string {
	return c.pick("one", "two", "three", "istio-system")
}

func (c documentGenerator) host() string {
	return c.pick("a.example", "b.example", "c.sub.example", "*.example", "*.sub.example", "*", "red", "red.one", "red.one.svc",
		"red.one.svc.cluster.local", "blue.two.svc.cluster.local", "blue", "240.9.9.1", "x.example", "ext.one.svc.cluster.local",
		"ext", "one", "a", "*.local", "*.one.svc.cluster.local", "ext.two", "other.one.svc", "other")
}

// destination returns the destination of a route, without a wildcard.
func (c documentGenerator) destination() string {
	host := strings.TrimPrefix(c.host(), "*.")
	if host == "*" {
		host = "a.example"
	}
	return fmt.Sprintf("{host: %q%s%s}", host, c.pick("", "", ", subset: v1", ", subset: v2"), c.pick("", "", ", port: {number: 80}", ", port: {number: 81}"))
}

func (c documentGenerator) route() string {
	if c.IntN(4) == 0 {
		return fmt.Sprintf("{destination: %s, weight: 30}, {destination: %s, weight: 70}", c.destination(), c.destination())
	}
	return "{destination: " + c.destination() + "}"
}

func (c documentGenerator) exported() string {
	return c.pick("", "", "", `exportTo: ["."], `, `exportTo: ["two"], `, `exportTo: ["*"], `)
}

func (c documentGenerator) labels() string {
	return c.pick("{app: a}", "{app: b}", "{app: a, version: v1}")
}

// selector returns the selector of a policy: for all workloads, for some workloads of the namespace, or a reference.
func (c documentGenerator) selector() string {
	return c.pick("", "", "selector: {matchLabels: "+c.labels()+"}, ", "targetRefs: [{kind: Service, group: '', name: red}], ",
		"targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], ",
		"targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: s1}], ", "selector: {matchLabels: {istio: edge}}, ")
}

func (c documentGenerator) ports(number, protocol string) string {
	var out []string
	for i, at := range []int{80, 81, 90} {
		if i == 0 || c.IntN(2) == 0 {
			out = append(out, fmt.Sprintf("{%s: %d, name: p%[2]d, %s: %q}", number, at, protocol, c.pick("HTTP", "HTTP", "HTTP2", "TCP", "TLS", "")))
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

// numbered returns one of n names.
func (c documentGenerator) numbered(prefix string, n int) string {
	return fmt.Sprintf("%s%d", prefix, c.IntN(n))
}

// serviceGenerators generate services.
var serviceGenerators = []func(documentGenerator) string{
	documentGenerator.service, documentGenerator.service, documentGenerator.service, documentGenerator.externalName, documentGenerator.externalName, documentGenerator.serviceOfDatagrams,
	documentGenerator.entry, documentGenerator.entry, documentGenerator.entryOfWorkloads, documentGenerator.entryOfWorkloads, documentGenerator.entryByName, documentGenerator.entryOfAny,
	documentGenerator.workload, documentGenerator.workload,
}

func (c documentGenerator) service() string {
	exported := c.pick("", "", "", `, annotations: {networking.istio.io/exportTo: "."}`, `, annotations: {networking.istio.io/exportTo: "two"}`)
	text := document("v1", "Service", c.pick("red", "blue", "a", "sub"), c.namespace()+exported,
		fmt.Sprintf("clusterIP: %s, selector: %s, ports: [%s]", c.pick("None", "None", "240.9.9.1", "240.9.9.2"), c.labels(), c.ports("port", "appProtocol")))
	return text
}

// externalName returns an alias of a service, of another alias, or of an external host.
func (c documentGenerator) externalName() string {
	exported := c.pick("", "", "", `, annotations: {networking.istio.io/exportTo: "."}`, `, annotations: {networking.istio.io/exportTo: "two"}`)
	return document("v1", "Service", c.pick("ext", "ext", "other", "red"), c.namespace()+exported, fmt.Sprintf("type: ExternalName, externalName: %s%s",
		c.pick("a.example", "red.one.svc.cluster.local", "red.one.svc.cluster.local", "blue.two.svc.cluster.local", "other.example.net",
			"ext.one.svc.cluster.local", "ext.two.svc.cluster.local", "other.one.svc.cluster.local", "red.one.svc"),
		c.pick("", ", ports: [{port: 80, name: http}]", ", ports: [{port: 81, name: http}]")))
}

func (c documentGenerator) serviceOfDatagrams() string {
	return document("v1", "Service", "udp", c.namespace(), fmt.Sprintf("clusterIP: %s, selector: {app: a}, ports: [{port: 80, name: u, protocol: UDP}, %s]",
		c.pick("240.9.9.1", "240.9.9.5", "None"), c.pick("{port: 80, name: http}", "{port: 81, name: tcp}", "{port: 90, name: x, targetPort: named}")))
}

func (c documentGenerator) entry() string {
	return ofNetworking("ServiceEntry", c.numbered("s", 6), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: STATIC, %sports: [%s]%s", c.host(),
		c.pick("", "", "addresses: [240.9.9.1], ", "addresses: [240.9.9.2], ", `exportTo: ["."], `), c.ports("number", "protocol"), c.maybe(", endpoints: [{address: 10.0.0.1}]")))
}

func (c documentGenerator) entryOfWorkloads() string {
	return ofNetworking("ServiceEntry", c.numbered("w", 4), c.namespace(), fmt.Sprintf("hosts: [%q%s], location: %s, resolution: STATIC, %s%s%sworkloadSelector: {labels: %s}, ports: [%s]",
		c.pick("a.example", "b.example", "c.sub.example", "red.one.svc.cluster.local", "red"), c.maybe(", x.example"), c.pick("MESH_INTERNAL", "MESH_EXTERNAL"), c.exported(),
		c.pick("", "addresses: [240.9.9.1], ", "addresses: [240.9.9.2, 240.9.9.3], ", "addresses: [240.9.9.0/24], "),
		c.rarely("subjectAltNames: ['spiffe://cluster.local/ns/one/sa/a'], "), c.labels(), c.ports("number", "protocol")))
}

func (c documentGenerator) entryByName() string {
	return ofNetworking("ServiceEntry", c.numbered("d", 4), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: %s, location: MESH_EXTERNAL, %sports: [%s]%s",
		c.pick("a.example", "b.example", "d.example"), c.pick("DNS", "DNS_ROUND_ROBIN"), c.exported(), c.ports("number", "protocol"), c.rarely(", endpoints: [{address: other.example}]")))
}

// entryOfAny returns a ServiceEntry without endpoints, for which the request determines the destination.
func (c documentGenerator) entryOfAny() string {
	return ofNetworking("ServiceEntry", c.numbered("n", 3), c.namespace(), fmt.Sprintf("hosts: [%q], resolution: %s, location: MESH_EXTERNAL, ports: [%s]",
		c.pick("*.example", "b.example", "*.other.example", "*.wild.example"), c.pick("NONE", "NONE", "DYNAMIC_DNS"), c.ports("number", "protocol")))
}

func (c documentGenerator) workload() string {
	return ofNetworking("WorkloadEntry", c.numbered("we", 5), c.namespace(), fmt.Sprintf("address: 127.193.1.%d, %s%sserviceAccount: %s, labels: {app: %s, version: %s%s}%s",
		1+c.IntN(5), c.rarely("ports: {p80: 8080}, "), c.rarely("network: elsewhere, "), c.pick("a", "b"), c.pick("a", "b"), c.pick("v1", "v2"), c.maybe(", security.istio.io/tlsMode: istio"), c.rarely(", locality: r1/z1, weight: 3")))
}
