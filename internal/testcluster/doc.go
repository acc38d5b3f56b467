// Package testcluster runs Kubernetes without nodes for tests: etcd, API server and controllers, as processes on
// loopback. scripts/kubernetes.sh builds them. If they are not built, tests are skipped.
//
// Nothing runs pods. RunPod creates a pod on a node and writes the status that a kubelet would write. The controllers do
// the rest: EndpointSlices of Services, pods of Deployments, service accounts, root certificates and garbage collection.
// The controllers that react to missing nodes and kubelets are disabled.
//
// Most tests use Shared, which starts one cluster for all tests of a package, and Cluster.Namespace. Tests that change
// cluster-wide objects, stop components or need other flags use Start.
package testcluster
