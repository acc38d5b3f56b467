// Package agent implements the agent of one proxy. It resolves its configuration once, from defaults, the mesh file,
// the environment, the pod's annotations and flags. It starts the components of a mesh proxy (status server,
// certificates, xDS relay, Envoy), and drains and stops them before one deadline.
//
// Variables, flags, ports, paths and annotations have the names of Istio's agent, so that a pod for Istio's agent runs
// with this one.
package agent
