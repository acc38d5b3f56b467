package translate_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/dns"
)

const namedMesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: one}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: one}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp-db, port: 3306, targetPort: 13306}]}
---
apiVersion: v1
kind: Service
metadata: {name: nowhere, namespace: one}
spec: {clusterIP: None, selector: {app: nowhere}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: private, namespace: two, annotations: {networking.istio.io/exportTo: "."}}
spec: {clusterIP: 10.96.0.2, selector: {app: private}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: one}
spec: {hosts: ["*.api.example.com", api.example.com], addresses: [240.240.0.1, "fd00::1"], resolution: STATIC, location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS}], endpoints: [{address: 1.2.3.4}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: one}
spec: {hosts: [outside.example.com], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-1, namespace: one}
spec: {address: 127.203.40.1, labels: {app: web}, serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-1, namespace: one}
spec: {address: 127.203.40.3, labels: {app: db}, serviceAccount: db}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-0, namespace: one}
spec: {address: 127.203.40.2, labels: {app: db}, serviceAccount: db}
`

func names(t *testing.T, m *testMesh, description string) map[string]translate.DescribedName {
	t.Helper()
	r, err := translate.NameTable(m.snap, proxy(t, description))
	if err != nil {
		t.Fatal(err)
	}
	return translate.DescribeNames(r.Body.GetValue())
}

func TestNameTableOfRedirectedWorkload(t *testing.T) {
	m := newTestMesh(t, nil, namedMesh)
	got := names(t, m, "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT")
	api := translate.DescribedName{IPs: []string{"240.240.0.1", "fd00::1"}, Registry: "External", Ports: []string{"_tls._tcp 443"}}
	want := map[string]translate.DescribedName{
		"web.one.svc.cluster.local": {IPs: []string{"10.96.0.1"}, Registry: "Kubernetes", ShortName: "web", Namespace: "one",
			Ports: []string{"_http._tcp 80", "_dns._udp 53"}},
		"db.one.svc.cluster.local": {IPs: []string{"127.203.40.2", "127.203.40.3"}, Registry: "Kubernetes", ShortName: "db", Namespace: "one",
			Ports: []string{"_tcp-db._tcp 13306"}},
		"db-0.db.one.svc.cluster.local": {IPs: []string{"127.203.40.2"}, Registry: "Kubernetes", ShortName: "db-0.db", Namespace: "one"},
		"db-1.db.one.svc.cluster.local": {IPs: []string{"127.203.40.3"}, Registry: "Kubernetes", ShortName: "db-1.db", Namespace: "one"},
		"api.example.com":               api, "*.api.example.com": api,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNameTableWithoutRedirection(t *testing.T) {
	m := newTestMesh(t, nil, namedMesh)
	got := names(t, m, "sidecar a-1.two 127.203.41.1 app=a UPSTREAM_LISTENERS=db.one:3306=127.203.41.16:3306")
	for host, want := range map[string]string{
		// Not the virtual IP, at which no process listens without redirection.
		"web.one.svc.cluster.local":         "127.203.40.1",
		"db.one.svc.cluster.local":          "127.203.41.16",
		"private.two.svc.cluster.local":     "10.96.0.2",
		"api.example.com":                   "1.2.3.4",
		"web-1.web.one.svc.cluster.local":   "127.203.40.1",
		"nowhere.one.svc.cluster.local":     "",
		"outside.example.com":               "",
		"db-0.db.one.svc.cluster.local":     "",
		"web-1.private.svc.cluster.local":   "",
		"private.two.svc.cluster.local.two": "",
	} {
		if ips := strings.Join(got[host].IPs, " "); ips != want {
			t.Errorf("%s: %q, want %q", host, ips, want)
		}
	}
	if ports := got["db.one.svc.cluster.local"].Ports; !slices.Equal(ports, []string{"_tcp-db._tcp 3306"}) {
		t.Errorf("the name table has the ports %v for the upstream listener", ports)
	}
}

func TestVirtualIPsAreOnlyForCapturedWorkloads(t *testing.T) {
	m := newTestMesh(t, nil, namedMesh)
	inputs := m.inputs()
	inputs.Virtual = netip.MustParsePrefix("240.240.0.0/16")
	m.snap = snapshot.Build(nil, inputs, nil)
	for description, want := range map[string]string{
		"sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT":                "240.240.112.208",
		"sidecar a-1.one 127.203.41.1 app=a":                                           "",
		"sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT GENERATOR=grpc": "",
		"router a-1.one 127.203.41.1 app=a":                                            "",
	} {
		got := names(t, m, description)
		if ips := strings.Join(got["outside.example.com"].IPs, " "); ips != want {
			t.Errorf("%s: %q, want %q", description, ips, want)
		}
		if got["api.example.com"].IPs == nil {
			t.Errorf("%s: the table lacks a service whose address is set in its document", description)
		}
	}
}

func TestNameTableIsCachedPerScope(t *testing.T) {
	m := newTestMesh(t, nil, namedMesh)
	table := func(description string) any {
		r, err := translate.NameTable(m.snap, proxy(t, description))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := table("sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT")
	if first != table("sidecar b-1.one 127.203.41.2 app=b INTERCEPTION_MODE=REDIRECT") {
		t.Error("two proxies of one namespace do not share a table")
	}
	if first == table("sidecar a-1.one 127.203.41.1 app=a") {
		t.Error("proxies with and without redirection share a table")
	}
}

func TestNameTableIsDeterministic(t *testing.T) {
	docs := strings.Split(namedMesh, "---\n")
	slices.Reverse(docs)
	description := "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT"
	one, other := names(t, newTestMesh(t, nil, namedMesh), description), names(t, newTestMesh(t, nil, strings.Join(docs, "---\n")), description)
	if diff := cmp.Diff(one, other); diff != "" {
		t.Error(diff)
	}
	if len(slices.Collect(maps.Keys(one))) == 0 {
		t.Error("the name table is empty")
	}
}

func TestAgentReadsNameTablePorts(t *testing.T) {
	m := newTestMesh(t, nil, namedMesh)
	r, err := translate.NameTable(m.snap, proxy(t, "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := dns.DecodeTable(r.Body.GetValue())
	if err != nil || table.Skipped != 0 || len(table.Hosts) != 6 {
		t.Fatalf("%v, %+v", err, table)
	}
	web := table.Hosts["web.one.svc.cluster.local"]
	want := []dns.Port{{Name: "http", Protocol: "tcp", Number: 80}, {Name: "dns", Protocol: "udp", Number: 53}}
	if diff := cmp.Diff(want, web.Ports); diff != "" || web.ShortName != "web" || web.Namespace != "one" || web.Registry != "Kubernetes" {
		t.Errorf("%+v: %s", web, diff)
	}
}
