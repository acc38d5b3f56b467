// Package config resolves the agent's configuration once, from defaults, the mesh file, the environment, the pod's
// annotations and flags. It records the source of each value. It reports all invalid values together, each with a
// remedy.
//
// Environment variables, flags, paths and annotations have the same names as in Istio's agent. Pods that are configured
// for Istio's agent therefore run with this agent.
package config
