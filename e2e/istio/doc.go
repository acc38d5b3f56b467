// Package istio runs the agent under Istio's own control plane. istiod is built, unmodified, from the module in the
// folder istiod, which pins its version; scripts/istiod.sh does that. It runs as it does in a cluster, except that the
// Kubernetes API which it asks is the test's: a table of a namespace, services and pods, and a reviewer of tokens. A
// pod is a network namespace with the redirection that Istio's init container makes, and the agent in it gets the
// environment, files and paths that Istio's injector gives, and nothing else.
package istio
