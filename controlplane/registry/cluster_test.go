package registry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const (
	webHost    = "web.shop.svc.cluster.local"
	webService = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: dns, port: 53, protocol: UDP}]}}`
	webPorts   = `[{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}, {name: other, port: 1}]`
)

// podDocument returns a running pod of the namespace shop. fields are further labels.
func podDocument(name, ip string, labels ...string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: shop, uid: uid-%[1]s, labels: {%[3]s}}, spec: {serviceAccountName: web-account, nodeName: node-1}, status: {phase: Running, podIP: "%[2]s", conditions: [{type: Ready, status: "True"}]}}`,
		name, ip, strings.Join(append([]string{"app: web"}, labels...), ", "))
}

// target returns an endpoint of an EndpointSlice that refers to a pod of podDocument.
func target(pod, ip string, fields ...string) string {
	return fmt.Sprintf(`{addresses: ["%[2]s"], nodeName: node-1, targetRef: {kind: Pod, name: %[1]s, uid: uid-%[1]s}%[3]s}`, pod, ip, strings.Join(append([]string{""}, fields...), ", "))
}

func sliceDocument(name string, endpoints ...string) string {
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: %s, endpoints: [%s]}`,
		name, webPorts, strings.Join(endpoints, ", "))
}

func TestPodOfAnEndpointSliceDeterminesTheEndpoint(t *testing.T) {
	r := build(t, webService, podDocument("a", "10.1.0.1", "version: v1", "security.istio.io/tlsMode: istio"),
		podDocument("b", "10.1.0.2"), sliceDocument("web-1", target("a", "10.1.0.1"), target("b", "10.1.0.2")),
		`{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}}`)
	s := service(t, r, webHost)
	if got := endpoints(t, r, webHost); got != "80=10.1.0.1:8080 80=10.1.0.2:8080" {
		t.Fatalf("endpoints %s", got)
	}
	e := r.Endpoints(s)[0]
	if e.Labels["version"] != "v1" || !e.MTLS || e.ServiceAccount != "web-account" || e.Namespace != "shop" || e.Workload != "a" || e.Node != "node-1" || e.Locality != "r/z" {
		t.Errorf("got %+v", e)
	}
	if second := r.Endpoints(s)[1]; second.MTLS {
		t.Error("a pod without a sidecar has mutual TLS, because it has a service account")
	}
	if udp := r.Datagrams(s); len(udp) != 2 || udp[0].Port != 5353 {
		t.Errorf("UDP endpoints %+v", udp)
	}
}

func TestServiceUsesAllItsEndpointSlices(t *testing.T) {
	r := build(t, webService, podDocument("a", "10.1.0.1"), podDocument("b", "10.1.0.2"),
		sliceDocument("web-1", target("a", "10.1.0.1")), sliceDocument("web-2", target("b", "10.1.0.2"), target("a", "10.1.0.1")),
		strings.Replace(sliceDocument("other", target("a", "10.1.0.9")), "service-name: web", "service-name: other", 1))
	if got := endpoints(t, r, webHost); got != "80=10.1.0.1:8080 80=10.1.0.2:8080" {
		t.Errorf("endpoints %s", got)
	}
}

func TestNamedTargetPortMayDifferBetweenSlices(t *testing.T) {
	r := build(t, webService, podDocument("a", "10.1.0.1"), podDocument("b", "10.1.0.2"), sliceDocument("web-1", target("a", "10.1.0.1")),
		strings.Replace(sliceDocument("web-2", target("b", "10.1.0.2")), "port: 8080", "port: 9090", 1))
	if got := endpoints(t, r, webHost); got != "80=10.1.0.1:8080 80=10.1.0.2:9090" {
		t.Errorf("endpoints %s", got)
	}
}

func TestManualEndpointSliceNeedsNoPod(t *testing.T) {
	without := strings.Replace(webService, "selector: {app: web}, ", "", 1)
	manual := sliceDocument("web-1", `{addresses: [10.9.0.1]}`)
	r := build(t, without, manual)
	if got := endpoints(t, r, webHost); got != "80=10.9.0.1:8080" || len(r.Problems) > 0 {
		t.Errorf("endpoints %s, problems %v", got, r.Problems)
	}
	if e := r.Endpoints(service(t, r, webHost))[0]; e.MTLS || e.ServiceAccount != "" || e.Labels != nil {
		t.Errorf("got %+v", e)
	}
	if got := problems(build(t, without)); !strings.Contains(got, "a Service without a selector has no endpoints") {
		t.Errorf("without a slice: %s", got)
	}
}

func TestSliceWaitsForItsPod(t *testing.T) {
	store := storeOf(t, webService, sliceDocument("web-1", target("a", "10.1.0.1")))
	r := Build(nil, store, Options{}, nil)
	if got := endpoints(t, r, webHost); got != "" {
		t.Fatalf("before the pod is known: %s", got)
	}
	r = Build(r, store, Options{}, put(t, store, podDocument("a", "10.1.0.1")))
	if got := endpoints(t, r, webHost); got != "80=10.1.0.1:8080" || len(r.Problems) > 0 {
		t.Errorf("endpoints %s, problems %v", got, r.Problems)
	}
}

func TestPodIsFoundByUIDAndNotByAddress(t *testing.T) {
	store := storeOf(t, webService, podDocument("a-0", "10.1.0.1", "version: old"), sliceDocument("web-1", target("a-0", "10.1.0.1")))
	r := Build(nil, store, Options{}, nil)
	// The pod is replaced by one with the same name, before the slice changes. Another pod receives its address.
	replaced := strings.Replace(podDocument("a-0", "10.1.0.7", "version: new"), "uid: uid-a-0", "uid: next", 1)
	r = Build(r, store, Options{}, put(t, store, replaced, podDocument("b", "10.1.0.1", "version: foreign")))
	if got := endpoints(t, r, webHost); got != "" {
		t.Errorf("the endpoint of the former pod is %s", got)
	}
	r = Build(r, store, Options{}, put(t, store, strings.Replace(sliceDocument("web-1", target("a-0", "10.1.0.7")), "uid: uid-a-0", "uid: next", 1)))
	if e := r.Endpoints(service(t, r, webHost)); len(e) != 1 || e[0].Labels["version"] != "new" {
		t.Errorf("got %+v", e)
	}
}

func TestHostNetworkPodsOnOneNodeDiffer(t *testing.T) {
	r := build(t, webService, podDocument("a", "192.0.2.1", "version: v1"), podDocument("b", "192.0.2.1", "version: v2"),
		sliceDocument("web-1", target("a", "192.0.2.1")), strings.Replace(sliceDocument("web-2", target("b", "192.0.2.1")), "port: 8080", "port: 9090", 1))
	eps := r.Endpoints(service(t, r, webHost))
	if len(eps) != 2 || eps[0].Labels["version"] != "v1" || eps[1].Labels["version"] != "v2" || eps[1].Port != 9090 {
		t.Errorf("got %+v", eps)
	}
}

func TestOnlyReadyEndpointsAreUsedUnlessSessionsDrain(t *testing.T) {
	slice := sliceDocument("web-1", target("a", "10.1.0.1"), target("b", "10.1.0.2", "conditions: {ready: false, serving: false}"),
		target("c", "10.1.0.3", "conditions: {ready: false, serving: true, terminating: true}"),
		target("d", "10.1.0.4", "conditions: {ready: true, serving: false, terminating: true}")) // publishNotReadyAddresses
	pods := []string{podDocument("a", "10.1.0.1"), podDocument("b", "10.1.0.2"), podDocument("c", "10.1.0.3"), podDocument("d", "10.1.0.4"), slice}
	if got := endpoints(t, build(t, append(pods, webService)...), webHost); got != "80=10.1.0.1:8080 80=10.1.0.4:8080" {
		t.Errorf("endpoints %s", got)
	}
	sticky := strings.Replace(webService, "namespace: shop", "namespace: shop, labels: {istio.io/persistent-session: cookie}", 1)
	r := build(t, append(pods, sticky)...)
	if got := endpoints(t, r, webHost); got != "80=10.1.0.1:8080 80=10.1.0.3:8080 80=10.1.0.4:8080" {
		t.Errorf("with persistent sessions: %s", got)
	}
	if eps := r.Endpoints(service(t, r, webHost)); eps[0].Draining || !eps[1].Draining || eps[2].Draining {
		t.Errorf("with persistent sessions: %+v", eps)
	}
}

func TestEndpointOfBothFamiliesIsOneEndpoint(t *testing.T) {
	pod := strings.Replace(podDocument("a", "10.1.0.1"), `podIP: "10.1.0.1"`, `podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]`, 1)
	v6 := strings.Replace(sliceDocument("web-0", target("a", "fd00::1")), "IPv4", "IPv6", 1)
	r := build(t, webService, pod, sliceDocument("web-1", target("a", "10.1.0.1")), v6)
	eps := r.Endpoints(service(t, r, webHost))
	if len(eps) != 1 || eps[0].Address != "10.1.0.1" || eps[0].SecondAddress != "fd00::1" {
		t.Errorf("got %+v", eps)
	}
	only := build(t, webService, pod, v6)
	if eps := only.Endpoints(service(t, only, webHost)); len(eps) != 1 || eps[0].Address != "fd00::1" || eps[0].SecondAddress != "" {
		t.Errorf("a Service with IPv6 alone: %+v", eps)
	}
}

func TestSliceWithHostNamesIsReported(t *testing.T) {
	r := build(t, webService, strings.Replace(sliceDocument("web-1", `{addresses: [a.example]}`), "IPv4", "FQDN", 1))
	if got := problems(r); endpoints(t, r, webHost) != "" || !strings.Contains(got, "proxies do not use EndpointSlices with host names") {
		t.Errorf("endpoints %s, problems %s", endpoints(t, r, webHost), got)
	}
}

func TestPodLocalityLabelPrecedesItsNode(t *testing.T) {
	const node = `{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z, topology.istio.io/subzone: s}}}`
	store := storeOf(t, webService, podDocument("a", "10.1.0.1"), podDocument("b", "10.1.0.2", "topology.istio.io/locality: own.place"),
		sliceDocument("web-1", target("a", "10.1.0.1"), target("b", "10.1.0.2")))
	r := Build(nil, store, Options{}, nil)
	s := service(t, r, webHost)
	if eps := r.Endpoints(s); eps[0].Locality != "" || eps[1].Locality != "own/place" {
		t.Errorf("before the node is known: %+v", eps)
	}
	r = Build(r, store, Options{}, put(t, store, node))
	if eps := r.Endpoints(s); eps[0].Locality != "r/z/s" || eps[1].Locality != "own/place" {
		t.Errorf("got %+v", eps)
	}
	if got := r.PodLocality("shop", "a") + " " + r.PodLocality("shop", "b") + r.PodLocality("shop", "none"); got != "r/z/s own/place" {
		t.Errorf("localities of pods: %s", got)
	}
}

func TestNetworkOfANamespaceAppliesToItsPods(t *testing.T) {
	store := storeOf(t, webService, podDocument("a", "10.1.0.1"), podDocument("b", "10.1.0.2", "topology.istio.io/network: own"),
		sliceDocument("web-1", target("a", "10.1.0.1"), target("b", "10.1.0.2")))
	r := Build(nil, store, Options{}, nil)
	r = Build(r, store, Options{}, put(t, store, `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {topology.istio.io/network: net}}}`))
	if eps := r.Endpoints(service(t, r, webHost)); eps[0].Network != "net" || eps[1].Network != "own" {
		t.Errorf("got %+v", eps)
	}
}

func TestHeadlessServiceHasANamePerPod(t *testing.T) {
	headless := strings.Replace(webService, "10.96.0.1", "None", 1)
	member := func(name, ip, fields string) string {
		return strings.Replace(podDocument(name, ip), "spec: {", "spec: {"+fields+", ", 1)
	}
	r := build(t, headless, member("web-0", "10.1.0.1", "hostname: web-0, subdomain: web"), member("plain", "10.1.0.2", "subdomain: web"),
		member("foreign", "10.1.0.3", "hostname: foreign, subdomain: other"), podDocument("none", "10.1.0.4"),
		sliceDocument("s", target("web-0", "10.1.0.1"), target("plain", "10.1.0.2"), target("foreign", "10.1.0.3"), target("none", "10.1.0.4"), `{addresses: [10.1.0.5], hostname: manual}`))
	var got []string
	for _, e := range r.Endpoints(service(t, r, webHost)) {
		got = append(got, e.Address+"="+e.Hostname)
	}
	if text := strings.Join(got, " "); text != "10.1.0.5=manual 10.1.0.3= 10.1.0.4= 10.1.0.2=plain 10.1.0.1=web-0" {
		t.Errorf("got %s", text)
	}
}

func TestServiceEntrySelectsPodsAndWorkloadEntries(t *testing.T) {
	const entry = `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: shop}, spec: {hosts: [web.example], resolution: STATIC, workloadSelector: {labels: {app: web}}, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]}}`
	const vm = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: vm, namespace: shop}, spec: {address: 10.2.0.1, labels: {app: web}}}`
	store := storeOf(t, entry, vm, podDocument("a", "10.1.0.1"), strings.Replace(podDocument("unready", "10.1.0.2"), `"True"`, `"False"`, 1),
		strings.Replace(podDocument("foreign", "10.1.0.3"), "namespace: shop", "namespace: other", 1))
	r := Build(nil, store, Options{}, nil)
	if got := endpoints(t, r, "web.example"); got != "80=10.2.0.1:8080 80=10.1.0.1:8080" {
		t.Fatalf("endpoints %s", got)
	}
	r = Build(r, store, Options{}, put(t, store, podDocument("unready", "10.1.0.2"), podDocument("c", "10.1.0.4"), strings.Replace(podDocument("a", "10.1.0.1"), "app: web", "app: other", 1)))
	if got := endpoints(t, r, "web.example"); got != "80=10.2.0.1:8080 80=10.1.0.4:8080 80=10.1.0.2:8080" {
		t.Errorf("after changes of pods: %s", got)
	}
}

func TestServiceSelectsPodsBySliceAndWorkloadEntriesBySelector(t *testing.T) {
	const vm = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: vm, namespace: shop}, spec: {address: 10.2.0.1, labels: {app: web}, ports: {http: 8081}}}`
	r := build(t, webService, vm, podDocument("a", "10.1.0.1"), podDocument("not-in-the-slice", "10.1.0.2"), sliceDocument("web-1", target("a", "10.1.0.1")))
	if got := endpoints(t, r, webHost); got != "80=10.2.0.1:8081 80=10.1.0.1:8080" {
		t.Errorf("endpoints %s", got)
	}
}

func TestTrafficDistribution(t *testing.T) {
	service := func(spec, annotated string) string {
		text := strings.Replace(webService, "spec: {", "spec: {"+spec, 1)
		return strings.Replace(text, "namespace: shop", "namespace: shop"+annotated, 1)
	}
	withAnnotation := func(value string) string {
		return ", annotations: {networking.istio.io/traffic-distribution: " + value + "}"
	}
	for name, c := range map[string]struct {
		spec, annotated, namespace string
		want                       Distribution
	}{
		"none":                      {want: ""},
		"field":                     {spec: "trafficDistribution: PreferSameNode, ", annotated: withAnnotation("PreferClose"), want: PreferSameNode},
		"former name":               {spec: "trafficDistribution: PreferClose, ", want: PreferSameZone},
		"annotation":                {annotated: withAnnotation("preferclose"), namespace: withAnnotation("PreferSameNode"), want: PreferSameZone},
		"annotation with any value": {annotated: withAnnotation("Any"), namespace: withAnnotation("PreferSameNode"), want: ""},
		"namespace":                 {namespace: withAnnotation("PreferSameNode"), want: PreferSameNode},
	} {
		store := storeOf(t, service(c.spec, c.annotated))
		r := Build(nil, store, Options{}, nil)
		r = Build(r, store, Options{}, put(t, store, "{apiVersion: v1, kind: Namespace, metadata: {name: shop"+c.namespace+"}}"))
		if got := r.ByHostname(webHost)[0].Distribution; got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestRefusedEndpointOfASliceIsReported(t *testing.T) {
	r := build(t, webService, strings.Replace(sliceDocument("web-1", `{addresses: [127.0.0.1]}`), "port: 8080", "port: 15000", 1))
	if got := problems(r); endpoints(t, r, webHost) != "" || !strings.Contains(got, "an EndpointSlice of the Service: no proxy connects") {
		t.Errorf("endpoints %s, problems %s", endpoints(t, r, webHost), got)
	}
}

func TestPodsAreWorkloadsOfTheirNamespace(t *testing.T) {
	store := storeOf(t, podDocument("a", "10.1.0.1", "version: v1"), podDocument("b", "10.1.0.2"))
	before := Build(nil, store, Options{}, nil)
	after := Build(before, store, Options{}, put(t, store, podDocument("c", "10.1.0.3", "version: v1")))
	found, known := after.Workloads("shop", map[string]string{"app": "web", "version": "v1"})
	if len(found) != 2 || found[0].Name != "a" || found[1].Name != "c" || !known {
		t.Errorf("got %v, %t", found, known)
	}
	if _, known := after.Workloads("other", nil); known {
		t.Error("a namespace without pods has workloads")
	}
	if got := after.ChangedWorkloads(before); len(got) != 1 || got[0] != "shop" {
		t.Errorf("changed workloads: %v", got)
	}
	if got := after.SelectedWorkloads("shop", nil); len(got) != 3 || WorkloadAccount(got[0]) != "web-account" {
		t.Errorf("workloads %v", got)
	}
	store.Delete(config.Key{Kind: config.Pod, Namespace: "shop", Name: "a"})
	after = Build(after, store, Options{}, []config.Key{{Kind: config.Pod, Namespace: "shop", Name: "a"}})
	if found, _ := after.Workloads("shop", map[string]string{"version": "v1"}); len(found) != 1 {
		t.Errorf("after a pod is deleted: %v", found)
	}
}
