// Package istio runs the agent under Istio's own control plane. istiod is built, unmodified, from the module in the
// folder istiod, which pins its version; scripts/istiod.sh does that. It runs as it does in a cluster, except that the
// test implements the Kubernetes API: a table of a namespace, services and pods, and token reviews.
//
// A pod is a network namespace with the redirection that Istio's init container creates. Its container has the
// arguments, environment and mounts that istiod's own injector specifies, and nothing else. Only the program is ours,
// and Envoy is the upstream release: two features make istiod send no filters that only Istio's build of Envoy has.
package istio
