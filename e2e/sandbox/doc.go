// Package sandbox starts real pod sandboxes with containerd and runc, and the CNI plugin. The bridge plugin creates the
// pod's network, our plugin runs after it, and a real Envoy handles the pod's traffic. The package is a module of its
// own, so that the project does not depend on the CRI API. `make test` runs it after the other tests.
//
// containerd has its own network, mount and process namespaces, which the kernel removes with all processes after the
// test.
package sandbox
