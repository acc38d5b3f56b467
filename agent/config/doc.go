// Package config resolves the agent's configuration, once, from defaults, the mesh file, the environment, the pod's
// annotations and flags. Each value has its source, and all invalid values are reported together with their remedies.
//
// Variables, flags, paths and annotations have the names of Istio's agent, so that a pod for Istio's agent runs with
// this one.
package config
