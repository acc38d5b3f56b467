package kube

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// convertedObjects has one object for each field that the control plane uses.
var convertedObjects = map[string]string{
	"namespace": `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}, annotations: {topology.istio.io/controlPlaneClusters: one, other.example/a: b}}`,
	"namespace that is deleted": `
apiVersion: v1
kind: Namespace
metadata: {name: shop, deletionTimestamp: "2026-01-02T03:04:05Z"}`,
	"node": `
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z, topology.istio.io/subzone: s, kubernetes.io/os: linux}
  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true"}
status: {conditions: [{type: Ready, status: "True", lastHeartbeatTime: "2026-01-02T03:04:05Z"}]}`,
	"service": `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop, creationTimestamp: "2026-01-02T03:04:05Z", labels: {app: reviews}, annotations: {networking.istio.io/exportTo: "."}}
spec:
  type: ClusterIP
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1, "fd00::1"]
  selector: {app: reviews}
  publishNotReadyAddresses: true
  internalTrafficPolicy: Local
  trafficDistribution: PreferSameZone
  ports:
  - {name: http, port: 80, targetPort: web, protocol: TCP, appProtocol: kubernetes.io/h2c}
  - {name: tcp, port: 81, targetPort: 8081, protocol: TCP}
  - {name: udp, port: 82, protocol: UDP}`,
	"service with an external name": `
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {type: ExternalName, externalName: other.example.com}`,
	"headless service": `
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, type: ClusterIP, clusterIPs: [None], selector: {app: db}, internalTrafficPolicy: Cluster, ports: [{port: 5432, protocol: TCP}]}`,
	"endpoint slice": `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reviews-abc, namespace: shop, labels: {kubernetes.io/service-name: reviews}}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {port: 81}
endpoints:
- addresses: [10.1.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: n1
  zone: z
  hostname: reviews-0
  targetRef: {kind: Pod, namespace: shop, name: reviews-0, uid: u-0}
- addresses: [10.1.0.2, 10.1.0.3]
- addresses: [10.1.0.4]
  conditions: {ready: false}
- addresses: [10.1.0.5]
  conditions: {ready: false, serving: true, terminating: true}
  targetRef: {kind: Pod, namespace: other, name: reviews-1, uid: u-1}
- addresses: [10.1.0.6]
  targetRef: {kind: Node, name: n1}`,
	"endpoint slice of no service": `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: manual, namespace: shop}
addressType: FQDN
endpoints: [{addresses: [a.example.com]}]`,
	"pod": `
apiVersion: v1
kind: Pod
metadata:
  name: reviews-6d5f8-x2
  namespace: shop
  uid: u-0
  creationTimestamp: "2026-01-02T03:04:05Z"
  labels: {app: reviews, pod-template-hash: 6d5f8, security.istio.io/tlsMode: istio}
  annotations: {sidecar.istio.io/status: "{}"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: reviews-6d5f8, uid: r, controller: true}]
spec:
  serviceAccountName: reviews
  nodeName: n1
  hostname: reviews-0
  subdomain: reviews
  initContainers: [{name: i, ports: [{name: admin, containerPort: 9000}]}]
  containers: [{name: c, ports: [{name: web, containerPort: 8080}, {containerPort: 8081}]}]
status:
  phase: Running
  podIP: 10.1.0.1
  podIPs: [{ip: 10.1.0.1}, {ip: "fd00::2"}]
  conditions: [{type: Ready, status: "True"}]`,
	"pod on the network of its node": `
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop, uid: u-1, deletionTimestamp: "2026-01-02T03:04:05Z"}
spec: {hostNetwork: true, containers: [{name: c}]}
status: {phase: Running, podIP: 10.2.0.1, conditions: [{type: Ready, status: "False"}]}`,
}

// TestObjectsOfAClusterEqualThoseOfFiles compares the two ways on which an object is read.
func TestObjectsOfAClusterEqualThoseOfFiles(t *testing.T) {
	objects := map[config.Kind]func() runtime.Object{
		config.Namespace: func() runtime.Object { return &corev1.Namespace{} }, config.Node: func() runtime.Object { return &corev1.Node{} },
		config.Service: func() runtime.Object { return &corev1.Service{} }, config.Pod: func() runtime.Object { return &corev1.Pod{} },
		config.EndpointSlice: func() runtime.Object { return &discoveryv1.EndpointSlice{} },
	}
	seen := map[config.Kind]bool{}
	for name, text := range convertedObjects {
		t.Run(name, func(t *testing.T) {
			parsed, problems := config.Parse("file", []byte(text))
			if len(parsed) != 1 {
				t.Fatalf("the object is not accepted from a file: %v", problems)
			}
			want := *parsed[0]
			want.Origin, want.Positions = config.Position{}, nil
			seen[want.Kind] = true
			o := objects[want.Kind]()
			if err := yaml.Unmarshal([]byte(text), o); err != nil {
				t.Fatal(err)
			}
			for _, k := range clusterKinds {
				if k.kind != want.Kind {
					continue
				}
				got := newConverter().convert(k, o)
				if diff := cmp.Diff(&want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("the object of a cluster differs from that of a file (-file +cluster):\n%s", diff)
				}
				if !want.Equal(got) {
					t.Error("the two resources are not equal")
				}
			}
		})
	}
	if len(seen) != len(clusterKinds) {
		t.Errorf("the test has objects of %d kinds, but there are %d", len(seen), len(clusterKinds))
	}
}

func TestPodsOfAWorkloadShareMemory(t *testing.T) {
	c := newConverter()
	var pods []*config.Resource
	for range 2 {
		pod := &corev1.Pod{}
		if err := yaml.Unmarshal([]byte(convertedObjects["pod"]), pod); err != nil {
			t.Fatal(err)
		}
		for _, k := range clusterKinds {
			if k.kind == config.Pod {
				pods = append(pods, c.convert(k, pod))
			}
		}
	}
	pods[0].Labels["app"] = "changed"
	if pods[1].Labels["app"] != "changed" {
		t.Error("two pods with equal labels do not share them")
	}
	pods[0].Spec.(*config.PodSpec).Ports[0].Name = "changed"
	if pods[1].Spec.(*config.PodSpec).Ports[0].Name != "changed" {
		t.Error("two pods with equal ports do not share them")
	}
}
