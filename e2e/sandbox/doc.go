// Package sandbox starts real pod sandboxes, with containerd and runc, behind the CNI plugin: the bridge plugin makes the
// pod's network, ours follows, and the pod's traffic goes through a real Envoy. It is a module of its own, so that the
// project does not depend on the interface of container runtimes: `make test` runs it after the others.
//
// containerd has its own network, mount and process namespaces, which end with the test and everything in them.
package sandbox
