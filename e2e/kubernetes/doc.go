// Package kubernetes runs the CNI plugin and its node agent in a real cluster of one node, and for one test of two: API server, controllers,
// scheduler, kubelet, containerd, and examples/cni/node-agent.yaml as it is shipped. It is a module of its own and no part
// of `make test`, as building Kubernetes takes minutes: `make kubernetes` builds it and runs the tests.
//
// The cluster lives in a network namespace, and the node in namespaces of its own for mounts and processes within that;
// everything ends with the test.
package kubernetes
