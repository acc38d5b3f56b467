// Package kubernetes runs the CNI plugin and its node agent in a real cluster of one node, and for one test of two: API
// server, controllers, scheduler, kubelet, containerd, and examples/cni/node-agent.yaml as shipped. It is a separate
// module and not part of `make test`, as building Kubernetes needs minutes: `make kubernetes` builds it and runs the
// tests.
//
// The cluster runs in a network namespace. Its node has its own mount and PID namespaces within that. Everything ends
// with the test.
package kubernetes
