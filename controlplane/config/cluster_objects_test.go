package config

import (
	"net/netip"
	"strings"
	"testing"
)

const podDump = `apiVersion: v1
kind: Pod
metadata:
  name: web-7d4b9c-x2x
  namespace: shop
  generateName: web-7d4b9c-
  uid: 0b5c
  labels: {app: web, pod-template-hash: 7d4b9c, security.istio.io/tlsMode: istio}
  annotations: {sidecar.istio.io/status: '{}'}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-7d4b9c, uid: a, controller: true, blockOwnerDeletion: true}]
  someFieldOfANewVersion: {}
spec:
  nodeName: node-1
  serviceAccountName: web
  subdomain: web
  containers:
  - name: web
    image: web
    ports: [{name: http, containerPort: 8080, protocol: TCP}, {containerPort: 9090}]
status:
  phase: Running
  podIP: 10.1.2.3
  podIPs: [{ip: 10.1.2.3}, {ip: "fd00::3"}]
  conditions: [{type: Initialized, status: "True"}, {type: Ready, status: "True"}]
`

const sliceDump = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-abc
  namespace: shop
  labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}
addressType: IPv4
endpoints:
- addresses: [10.1.2.3]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: node-1
  zone: z1
  targetRef: {kind: Pod, name: web-7d4b9c-x2x, namespace: shop, uid: 0b5c}
- addresses: [10.1.2.4]
  conditions: {ready: false, serving: true, terminating: true}
- addresses: [10.1.2.5]
  targetRef: {kind: Pod, name: elsewhere, namespace: other, uid: 0b5d}
ports: [{name: http, port: 8080, protocol: TCP, appProtocol: http}]
`

// parseOne parses a file with one document that has an effect.
func parseOne(t *testing.T, text string) *Resource {
	t.Helper()
	resources, problems := Parse("f", []byte(text))
	if len(resources) != 1 || len(problems) > 0 {
		t.Fatalf("got %d resources and the problems %v\n%s", len(resources), problems, text)
	}
	return resources[0]
}

func TestPodOfAClusterDumpIsRead(t *testing.T) {
	r := parseOne(t, podDump)
	want := &PodSpec{
		UID: "0b5c", Addresses: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")},
		ServiceAccount: "web", Node: "node-1", Workload: "web", Subdomain: "web",
		Ports: []PodPort{{"http", 8080}}, Phase: "Running", Ready: true,
	}
	if !r.Spec.(*PodSpec).Equal(want) {
		t.Errorf("got  %+v\nwant %+v", r.Spec, want)
	}
	if r.Labels["app"] != "web" || r.Annotations != nil || r.Key != (Key{Pod, "shop", "web-7d4b9c-x2x"}) {
		t.Errorf("got %+v", r)
	}
}

func TestEndpointSliceOfAClusterDumpIsRead(t *testing.T) {
	want := &EndpointSliceSpec{
		Service: "web", AddressType: "IPv4", Ports: []SlicePort{{"http", "TCP", 8080}},
		Endpoints: []SliceEndpoint{
			{Address: "10.1.2.3", Node: "node-1", Zone: "z1", Pod: "web-7d4b9c-x2x", PodUID: "0b5c", Ready: true, Serving: true},
			{Address: "10.1.2.4", Serving: true, Terminating: true},
			{Address: "10.1.2.5", Ready: true, Serving: true}, // refers to a pod of another namespace
		},
	}
	if got := parseOne(t, sliceDump).Spec.(*EndpointSliceSpec); !got.Equal(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestNodesAndNamespacesHaveNoNamespace(t *testing.T) {
	node := parseOne(t, "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {topology.kubernetes.io/region: r, topology.istio.io/subzone: s, a: b}}\nspec: {podCIDR: 10.1.0.0/24}\nstatus: {conditions: []}")
	if node.Key != (Key{Node, "", "node-1"}) || node.Spec.(*NodeSpec).Locality != "r//s" || node.Labels != nil {
		t.Errorf("got %+v", node)
	}
	namespace := parseOne(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}, annotations: {networking.istio.io/traffic-distribution: PreferClose, kubectl.kubernetes.io/x: y}}")
	if namespace.Key != (Key{Namespace, "", "shop"}) || namespace.Labels["istio-injection"] != "enabled" || len(namespace.Annotations) != 1 {
		t.Errorf("got %+v", namespace)
	}
}

func TestHeartbeatOfANodeIsNoChange(t *testing.T) {
	text := "apiVersion: v1\nkind: Node\nmetadata: {name: n, resourceVersion: \"1\", annotations: {seen: \"1\"}}\nstatus: {conditions: [{type: Ready, lastHeartbeatTime: \"1\"}]}"
	if a, b := parseOne(t, text), parseOne(t, strings.ReplaceAll(text, `"1"`, `"2"`)); !a.Equal(b) {
		t.Errorf("%+v differs from %+v", a, b)
	}
}

func TestClusterObjectsAreNeverRefused(t *testing.T) {
	for name, text := range map[string]string{
		"manifest without status":   "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}",
		"generated name":            "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\nspec: {containers: []}\nstatus: {podIP: 10.0.0.1}",
		"finished":                  "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podIP: 10.0.0.1, phase: Succeeded}",
		"no metadata":               "apiVersion: v1\nkind: Namespace",
		"other types":               "apiVersion: v1\nkind: Pod\nmetadata: [a]\nspec: 1\nstatus: text",
		"labels of other types":     "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {a: 1, b: [c], d: null}}\nspec: {hostNetwork: maybe, containers: {}}\nstatus: {podIPs: [{ip: x}, 1, null], podIP: 7}",
		"former version of the API": "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}\nendpoints: []",
	} {
		resources, problems := Parse("f", []byte(text))
		if len(resources) != 0 || len(problems) != 1 || problems[0].Severity != Info || problems[0].Code != KindNoEffect {
			t.Errorf("%s: got %v and %v", name, resources, problems)
		}
	}
	parseOne(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {a: 1, b: [c]}}\nspec: {containers: [{ports: [{name: 1, containerPort: x}, 2]}]}\nstatus: {podIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}], conditions: [1]}")
	parseOne(t, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: 1}\nendpoints: [1, {addresses: x}, {addresses: [1, null, [a]], conditions: 7, targetRef: a}]\nports: [7, {port: -1}]")
}

func TestSameNamespaceInTwoDocumentsIsNoError(t *testing.T) {
	_, problems := Parse("f", []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}"))
	if len(problems) != 1 || problems[0].Severity != Info {
		t.Errorf("got %v", problems)
	}
}

func TestEncodedClusterObjectsAreDecodedUnchanged(t *testing.T) {
	for _, text := range []string{
		podDump, sliceDump,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\nspec: {hostNetwork: true, hostname: h, nodeName: n}\nstatus: {podIP: \"fd00::1\", phase: Pending}",
		"apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z, topology.istio.io/subzone: s}}",
		"apiVersion: v1\nkind: Node\nmetadata: {name: n}",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: n, labels: {a: b}, deletionTimestamp: \"2026-01-01T00:00:00Z\"}",
		wrap("Service", "{ports: [{port: 80}], publishNotReadyAddresses: true, internalTrafficPolicy: Local, trafficDistribution: PreferSameNode}"),
	} {
		roundTrip(t, parseOne(t, text))
	}
}

func TestWorkloadNames(t *testing.T) {
	for _, c := range []struct{ pod, kind, name, hash, want string }{
		{"a", "", "", "", "a"},
		{"web-7d4b9c-x", "ReplicaSet", "web-7d4b9c", "7d4b9c", "web"},
		{"web-x", "ReplicaSet", "web", "", "web"},
		{"db-0", "StatefulSet", "db", "", "db"},
		{"backup-28123456-x", "Job", "backup-28123456", "", "backup"},
		{"once-x", "Job", "once", "", "once"},
	} {
		if got := WorkloadName(c.pod, c.kind, c.name, map[string]string{"pod-template-hash": c.hash}); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestInternerSharesEqualValues(t *testing.T) {
	in := NewInterner()
	a, b := in.InternLabels(map[string]string{"app": "a", "x": "y"}), in.InternLabels(map[string]string{"x": "y", "app": "a"})
	a["shared"] = "true"
	if b["shared"] != "true" {
		t.Error("equal label sets are not shared")
	}
	if in.InternLabels(nil) != nil || in.InternPorts(nil) != nil {
		t.Error("empty sets are not nil")
	}
	p, q := in.InternPorts([]PodPort{{"a", 1}}), in.InternPorts([]PodPort{{"a", 1}})
	if &p[0] != &q[0] || in.InternPorts([]PodPort{{"a", 2}})[0].Number != 2 {
		t.Error("ports are not shared by value")
	}
	for i := range 2 * maxInterned {
		in.InternString(strings.Repeat("x", i%100) + string(rune(i)))
	}
	if len(in.strings) > maxInterned {
		t.Errorf("the interner remembers %d strings", len(in.strings))
	}
}

// FuzzClusterObjects: any content of an object is read without an error, and the result is encoded and decoded
// unchanged.
func FuzzClusterObjects(f *testing.F) {
	for _, text := range []string{podDump, sliceDump} {
		_, text, _ = strings.Cut(text, "metadata:")
		f.Add("metadata:" + text)
	}
	f.Add("metadata: {name: n, labels: {topology.kubernetes.io/region: r}}")
	f.Fuzz(func(t *testing.T, fields string) {
		for _, head := range []string{"apiVersion: v1\nkind: Pod\n", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n", "apiVersion: v1\nkind: Node\n", "apiVersion: v1\nkind: Namespace\n"} {
			resources, problems := Parse("f", []byte(head+fields))
			for _, r := range resources {
				if !r.Kind.IsClusterState() {
					continue // the text contains further documents
				}
				if text, err := Encode(r); err != nil {
					t.Error(err)
				} else if again, _ := Parse("f", text); len(again) != 1 || !again[0].Equal(r) {
					t.Errorf("%+v %+v is encoded as %s and decoded as %v", r, r.Spec, text, again)
				}
			}
			for _, p := range problems {
				if p.Severity == Error && p.Code == InvalidValue && p.Key.Kind.IsClusterState() && p.Field != "" && strings.HasPrefix(p.Field, "spec") {
					t.Errorf("a field is refused: %v", p)
				}
			}
		}
	})
}
