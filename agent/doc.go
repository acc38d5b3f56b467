// Package agent is the per-proxy agent: it resolves its configuration once, from defaults, the mesh file, the
// environment, the pod's annotations and flags; starts the parts that make a mesh proxy of an Envoy (status server,
// certificates, xDS relay, Envoy itself); and drains and stops them by one deadline.
//
// Names of variables, flags, ports, paths and annotations are those of Istio's agent, so that a pod made for that one
// runs with this one.
package agent
