// Package istio runs the agent under Istio's own control plane. istiod is built, unmodified, from the module in the
// folder istiod, which pins its version; scripts/istiod.sh does that. It runs as it does in a cluster, except that the
// Kubernetes API which it asks is the test's: a table of a namespace, services and pods, and a reviewer of tokens.
//
// A pod is a network namespace with the redirection that Istio's init container makes. What runs in it is the container
// that istiod's own injector puts there: its arguments, its environment, what a kubelet mounts for it, and nothing else.
// Only the program is ours, and Envoy is the upstream release: istiod is told, by two features, to send no filters that
// only Istio's build of Envoy has.
package istio
