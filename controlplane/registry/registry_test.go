package registry

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// storeOf returns a store of valid documents.
func storeOf(t testing.TB, documents ...string) *config.MemoryStore {
	t.Helper()
	store := config.NewMemoryStore()
	put(t, store, documents...)
	return store
}

func put(t testing.TB, store *config.MemoryStore, documents ...string) []config.Key {
	t.Helper()
	resources, problems := config.Parse("mesh.yaml", []byte(strings.Join(documents, "\n---\n")))
	for _, p := range problems {
		if p.Severity == config.Error {
			t.Fatal(p)
		}
	}
	var keys []config.Key
	for _, r := range resources {
		keys = append(keys, r.Key)
	}
	store.Put(resources...)
	return keys
}

func build(t testing.TB, documents ...string) *Registry {
	t.Helper()
	return Build(nil, storeOf(t, documents...), Options{Endpoints: anyEndpoint}, nil)
}

// service returns the only service that has a hostname.
func service(t testing.TB, r *Registry, host string) *Service {
	t.Helper()
	list := r.ByHostname(host)
	if len(list) != 1 {
		t.Fatalf("%d services have the hostname %s, want 1", len(list), host)
	}
	return list[0]
}

// endpoints formats a service's endpoints as "servicePort=address:port".
func endpoints(t testing.TB, r *Registry, host string) string {
	t.Helper()
	var out []string
	for _, e := range r.Endpoints(service(t, r, host)) {
		out = append(out, fmt.Sprintf("%d=%s:%d", e.ServicePort, e.Address, e.Port))
	}
	return strings.Join(out, " ")
}

func problems(r *Registry) string {
	var out []string
	for _, p := range r.Problems {
		out = append(out, p.String())
	}
	return strings.Join(out, "\n")
}

const (
	reviews = `{apiVersion: v1, kind: Service, metadata: {name: reviews}, spec: {clusterIP: 10.0.0.1, selector: {app: reviews}, ports: [{name: http, port: 9080}]}}`
	v1      = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: reviews-v1, labels: {app: reviews, security.istio.io/tlsMode: istio}}, spec: {address: 127.77.1.1, serviceAccount: reviews, labels: {version: v1}, weight: 3, locality: eu/a/1, network: n, ports: {http: 9080}}}`
	v2      = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: reviews-v2}, spec: {address: 127.77.2.1, labels: {app: reviews, version: v2}}}`
	other   = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: reviews-v1, namespace: other}, spec: {address: 127.77.3.1, labels: {app: reviews}}}`
	host    = "reviews.default.svc.cluster.local"
)

func TestKubernetesServiceSelectsWorkloadsOfItsNamespace(t *testing.T) {
	r := build(t, reviews, v1, v2, other)
	want := &Service{
		Hostname: host, Name: "reviews", Namespace: "default", Aliases: []string{"reviews.default", "reviews.default.svc"},
		Addresses:  []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports:      []Port{{Name: "http", Number: 9080, Protocol: HTTP, TargetPort: 9080}},
		Resolution: Static, Kubernetes: true, Selector: map[string]string{"app": "reviews"},
		Source: config.Key{Kind: config.Service, Namespace: "default", Name: "reviews"},
	}
	if diff := cmp.Diff(want, service(t, r, host), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	wantEndpoints := []Endpoint{
		{
			Address: "127.77.1.1", Port: 9080, ServicePort: 9080, Namespace: "default", Workload: "reviews-v1", ServiceAccount: "reviews",
			Labels:  map[string]string{"app": "reviews", "version": "v1", "security.istio.io/tlsMode": "istio"},
			Network: "n", Locality: "eu/a/1", Weight: 3, MTLS: true, Hostname: "reviews-v1",
		},
		{
			Address: "127.77.2.1", Port: 9080, ServicePort: 9080, Namespace: "default", Workload: "reviews-v2",
			Labels: map[string]string{"app": "reviews", "version": "v2"}, Hostname: "reviews-v2",
		},
	}
	if diff := cmp.Diff(wantEndpoints, r.Endpoints(service(t, r, host))); diff != "" {
		t.Error(diff)
	}
	if len(r.Problems) != 0 {
		t.Errorf("problems: %s", problems(r))
	}
}

func TestServicesOfAllSortsAreServed(t *testing.T) {
	we := func(name, spec string) string {
		return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: %s}, spec: %s}", name, spec)
	}
	se := func(spec string) string {
		return "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: s}, spec: " + spec + "}"
	}
	svc := func(spec string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: " + spec + "}"
	}
	const kube = "s.default.svc.cluster.local"
	for name, c := range map[string]struct {
		documents  []string
		host       string
		resolution Resolution
		endpoints  string
	}{
		"headless": {[]string{svc("{clusterIP: None, selector: {a: b}, ports: [{port: 80}]}"), we("w", "{address: 1.1.1.1, labels: {a: b}}")},
			kube, Static, "80=1.1.1.1:80"},
		"without workloads": {[]string{svc("{selector: {a: b}, ports: [{port: 80}]}")}, kube, Static, ""},
		"external name": {[]string{svc("{type: ExternalName, externalName: a.example.com, ports: [{port: 443, targetPort: x}]}")},
			kube, DNS, "443=a.example.com:443"},
		"target port by number": {[]string{svc("{selector: {a: b}, ports: [{name: http, port: 80, targetPort: 8080}]}"), we("w", "{address: 1.1.1.1, labels: {a: b}}")},
			kube, Static, "80=1.1.1.1:8080"},
		"target port by name": {[]string{svc("{selector: {a: b}, ports: [{name: http, port: 80, targetPort: web}]}"),
			we("v", "{address: 1.1.1.1, labels: {a: b}, ports: {web: 8080}}"), we("w", "{address: 1.1.1.2, labels: {a: b}, ports: {web: 8081}}")},
			kube, Static, "80=1.1.1.1:8080 80=1.1.1.2:8081"},
		"workload's own port for the name": {[]string{svc("{selector: {a: b}, ports: [{name: http, port: 80, targetPort: 8080}]}"), we("w", "{address: 1.1.1.1, labels: {a: b}, ports: {http: 9090}}")},
			kube, Static, "80=1.1.1.1:9090"},
		"workload that lists the target port": {[]string{svc("{selector: {a: b}, ports: [{name: http, port: 80, targetPort: 8080}]}"), we("w", "{address: 1.1.1.1, labels: {a: b}, ports: {http: 9090, alt: 8080}}")},
			kube, Static, "80=1.1.1.1:8080"},
		"several ports": {[]string{svc("{selector: {a: b}, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}"),
			we("v", "{address: 1.1.1.1, labels: {a: b}}"), we("w", "{address: 'fd00::1', labels: {a: b}}")},
			kube, Static, "80=1.1.1.1:80 80=fd00::1:80 53=1.1.1.1:53 53=fd00::1:53"},
		"several labels": {[]string{svc("{selector: {a: b, c: d}, ports: [{port: 80}]}"), we("v", "{address: 1.1.1.1, labels: {a: b}}"), we("w", "{address: 1.1.1.2, labels: {a: b, c: d, e: f}}")},
			kube, Static, "80=1.1.1.2:80"},
		"workload by socket": {[]string{svc("{selector: {a: b}, ports: [{port: 80}]}"), we("v", "{address: 'unix:///run/a', labels: {a: b}}")},
			kube, Static, "80=unix:///run/a:0"},
		"entry by DNS": {[]string{se("{hosts: [a.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]}")},
			"a.example.com", DNS, "80=a.example.com:8080"},
		"entry by DNS in turn": {[]string{se("{hosts: [a.example.com], resolution: DNS_ROUND_ROBIN, ports: [{number: 80, name: http, protocol: HTTP}]}")},
			"a.example.com", DNSRoundRobin, "80=a.example.com:80"},
		"entry by DNS of endpoints": {[]string{se("{hosts: ['*.example.com'], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: b.example.com, ports: {http: 81}}, {address: c.example.com}]}")},
			"*.example.com", DNS, "80=b.example.com:81 80=c.example.com:80"},
		"entry of addresses": {[]string{se("{hosts: [a.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 90, name: tcp, protocol: TCP}], endpoints: [{address: 1.1.1.1}, {address: 1.1.1.2, ports: {http: 81}}]}")},
			"a.example.com", Static, "80=1.1.1.1:8080 80=1.1.1.2:81 90=1.1.1.1:90 90=1.1.1.2:90"},
		"entry of a socket": {[]string{se("{hosts: [a.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 'unix:///run/a'}]}")},
			"a.example.com", Static, "80=unix:///run/a:0"},
		"entry passed through": {[]string{se("{hosts: ['*.example.com'], resolution: NONE, ports: [{number: 443, name: tls, protocol: TLS}]}")},
			"*.example.com", Passthrough, ""},
		"entry of workloads": {[]string{se("{hosts: [a.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}], workloadSelector: {labels: {a: b}}}"),
			we("v", "{address: 1.1.1.1, labels: {a: b}}"), we("w", "{address: 1.1.1.2, labels: {a: b}, ports: {http: 81}}"), we("x", "{address: 1.1.1.3, labels: {a: c}}")},
			"a.example.com", Static, "80=1.1.1.1:8080 80=1.1.1.2:81"},
		"entry of workloads by name": {[]string{se("{hosts: [a.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {a: b}}}"),
			we("v", "{address: w.example.com, labels: {a: b}}")},
			"a.example.com", DNS, "80=w.example.com:80"},
	} {
		t.Run(name, func(t *testing.T) {
			r := build(t, c.documents...)
			if got := service(t, r, c.host).Resolution; got != c.resolution {
				t.Errorf("resolution %d, want %d", got, c.resolution)
			}
			if got := endpoints(t, r, c.host); got != c.endpoints {
				t.Errorf("got %s, want %s", got, c.endpoints)
			}
		})
	}
}

func TestServiceEntryMakesAServiceOfEachHost(t *testing.T) {
	r := build(t, `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: s, namespace: ns}, spec: {
		hosts: [b.example.com, a.example.com, a.example.com], addresses: [240.0.0.1, 240.0.0.2/32], exportTo: [".", x], location: MESH_EXTERNAL,
		subjectAltNames: [spiffe://td/x], resolution: DNS, ports: [{number: 80, name: http, protocol: http}]}}`)
	if len(r.Services) != 2 || r.Services[0].Hostname != "a.example.com" || r.Services[1].Hostname != "b.example.com" {
		t.Fatalf("services %v", r.Services)
	}
	want := &Service{
		Hostname: "a.example.com", Name: "s", Namespace: "ns", Addresses: []netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("240.0.0.2")},
		Ports: []Port{{Name: "http", Number: 80, Protocol: HTTP, TargetPort: 80}}, Resolution: DNS, External: true, ExportTo: []string{".", "x"},
		SubjectAltNames: []string{"spiffe://td/x"}, Source: config.Key{Kind: config.ServiceEntry, Namespace: "ns", Name: "s"},
	}
	if diff := cmp.Diff(want, r.Services[0], cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	if s := r.Services[0]; !s.VisibleTo("ns") || !s.VisibleTo("x") || s.VisibleTo("y") {
		t.Error("the service is visible outside exportTo")
	}
}

func TestExportToAnnotationLimitsAKubernetesService(t *testing.T) {
	r := build(t, `{apiVersion: v1, kind: Service, metadata: {name: a, annotations: {networking.istio.io/exportTo: "., b"}}, spec: {selector: {a: b}, ports: [{port: 80}]}}`)
	if s := r.Services[0]; !s.VisibleTo("default") || !s.VisibleTo("b") || s.VisibleTo("c") {
		t.Errorf("exportTo is %v", s.ExportTo)
	}
}

func TestProtocolIsFoundAsDeclared(t *testing.T) {
	for _, c := range []struct {
		appProtocol, name string
		number            uint32
		want              Protocol
	}{
		{"", "http", 1, HTTP}, {"", "http-web", 1, HTTP}, {"", "HTTP-web", 1, HTTP}, {"", "http2", 1, HTTP2},
		{"", "grpc-api", 1, GRPC}, {"", "grpc-web", 1, GRPC}, {"", "https", 1, HTTPS}, {"", "tls-x", 1, TLS},
		{"", "tcp-db", 80, TCP}, {"", "mysql", 1, TCP}, {"", "udp-x", 1, UDP},
		{"http", "tcp-x", 1, HTTP}, {"kubernetes.io/h2c", "", 1, HTTP2}, {"kubernetes.io/ws", "", 1, HTTP}, {"HTTPS", "", 1, HTTPS},
		{"example.com/own", "http-x", 1, HTTP},
		{"", "", 80, Undeclared}, {"", "web", 8080, Undeclared}, {"", "", 443, HTTPS}, {"", "", 5432, TCP},
		{"", "", 9080, Undeclared}, {"", "httpx", 9080, Undeclared},
	} {
		if got := serviceProtocol(c.appProtocol, c.name, c.number); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	if got := entryProtocol("GRPC-Web", "http", 1); got != GRPC {
		t.Errorf("a ServiceEntry's GRPC-Web is %s", got)
	}
	if got := entryProtocol("", "http-x", 1); got != HTTP {
		t.Errorf("a ServiceEntry without protocol is %s", got)
	}
}

func TestSidecarIsKnownByLabelOrIdentity(t *testing.T) {
	for _, c := range []struct {
		labels  map[string]string
		account string
		want    bool
	}{
		{nil, "", false}, {nil, "sa", true}, {map[string]string{tlsModeLabel: "istio"}, "", true},
		{map[string]string{tlsModeLabel: "disabled"}, "sa", false}, {map[string]string{"a": "b"}, "", false},
	} {
		if got := HasSidecar(c.labels, c.account); got != c.want {
			t.Errorf("%v %q: %t", c.labels, c.account, got)
		}
	}
}

func TestShortNamesAreResolved(t *testing.T) {
	r := Build(nil, storeOf(t, reviews,
		`{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: s}, spec: {hosts: [mainframe], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}}`,
	), Options{Domain: "mesh.test"}, nil)
	for name, want := range map[string]string{
		"reviews": "reviews.default.svc.mesh.test", "reviews.default": "reviews.default.svc.mesh.test", "reviews.default.svc": "reviews.default.svc.mesh.test",
		"reviews.default.svc.mesh.test": "reviews.default.svc.mesh.test", "reviews.default.svc.mesh.test.": "reviews.default.svc.mesh.test",
		"example.com": "example.com", "*": "*", "*.example.com": "*.example.com", "10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1", "": "",
		"unknown": "unknown.default.svc.mesh.test", "mainframe": "mainframe", "reviews.other": "reviews.other",
	} {
		if got := r.ResolveHostname(name, "default"); got != want {
			t.Errorf("%q is resolved to %q, want %q", name, got, want)
		}
	}
	if got := r.Options().ResolveHostname("reviews.default", "default"); got != "reviews.default" {
		t.Errorf("without the existing services the name resolves to %q", got)
	}
	if got := r.ResolveHostname("reviews", "other"); got != "reviews.other.svc.mesh.test" {
		t.Errorf("from another namespace the name resolves to %q", got)
	}
}

func TestIdentityIsOfTheMeshsTrustDomain(t *testing.T) {
	o := Options{MeshTrustDomain: "td"}
	if got := o.Identity(Endpoint{Namespace: "ns", ServiceAccount: "sa"}); got != "spiffe://td/ns/ns/sa/sa" {
		t.Error(got)
	}
	if got := o.Identity(Endpoint{Namespace: "ns"}); got != "" {
		t.Error(got)
	}
}

func TestUnresolvedReferencesAreProblems(t *testing.T) {
	for name, c := range map[string]struct {
		documents []string
		want      string
	}{
		"unknown target port": {
			[]string{`{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: web}]}}`, v1, v2},
			`mesh.yaml:1:130: warning: Service default/s: spec.ports[0].targetPort: "web": no port has this name on workload reviews-v1 and 1 more workloads (the workloads have the port names http`,
		},
		"name for static": {
			[]string{reviews, `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w}, spec: {address: a.example.com, labels: {app: reviews}}}`},
			`WorkloadEntry default/w: spec.address: "a.example.com": this is not an IP address, so the service reviews.default.svc.cluster.local does not use`,
		},
		"no selector": {
			[]string{`{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}`},
			"a Service without a selector has no endpoints",
		},
		"SCTP": {
			[]string{`{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {selector: {a: b}, ports: [{port: 80, protocol: SCTP}]}}`},
			"proxies do not route SCTP",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := problems(build(t, c.documents...)); !strings.Contains(got, c.want) || strings.Count(got, "\n") > 0 {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// A network with a single address (/32) counts as an address.
func TestNetworksAreNotAddresses(t *testing.T) {
	r := build(t, `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: s}, spec: {hosts: [a.com], addresses: [10.0.0.7/8, 10.1.2.3/32, 10.1.2.4], ports: [{number: 80, name: http, protocol: HTTP}]}}`)
	s := service(t, r, "a.com")
	if got := fmt.Sprint(s.Addresses, s.Ranges); got != "[10.1.2.3 10.1.2.4] [10.0.0.0/8]" {
		t.Error(got)
	}
}

func entryOf(name, namespace, host, created string) string {
	return fmt.Sprintf(`{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: %s, namespace: %s, creationTimestamp: %q}, spec: {hosts: [%s], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}}`,
		name, namespace, created, host)
}

func TestOlderOfTwoEntriesOfAHostWins(t *testing.T) {
	r := build(t, entryOf("a", "default", "x.com", "2024-01-02T00:00:00Z"), entryOf("b", "default", "x.com", "2024-01-01T00:00:00Z"))
	if s := service(t, r, "x.com"); s.Name != "b" {
		t.Errorf("%s won", s.Name)
	}
	if got := problems(r); !strings.Contains(got, "ServiceEntry default/a: spec.hosts: \"x.com\": ServiceEntry default/b, at mesh.yaml:3:1, has the same host") {
		t.Errorf("problems: %s", got)
	}
}

func TestEntriesOfAHostInTwoNamespacesCoexist(t *testing.T) {
	r := build(t, entryOf("a", "ns1", "x.com", "2024-01-02T00:00:00Z"), entryOf("b", "ns2", "x.com", "2024-01-01T00:00:00Z"))
	if list := r.ByHostname("x.com"); len(list) != 2 || list[0].Namespace != "ns1" {
		t.Errorf("services %v", list)
	}
	if got := problems(r); !strings.Contains(got, "ServiceEntry ns1/a") || !strings.Contains(got, "because it is older") {
		t.Errorf("problems: %s", got)
	}
}

func TestKubernetesServicePrecedesAServiceEntry(t *testing.T) {
	r := build(t, entryOf("a", "default", host, "2024-01-02T00:00:00Z"), reviews, v1)
	if s := service(t, r, host); !s.Kubernetes {
		t.Error("the ServiceEntry takes precedence over the Service")
	}
	if got := problems(r); !strings.Contains(got, "ServiceEntry default/a") {
		t.Errorf("problems: %s", got)
	}
}
