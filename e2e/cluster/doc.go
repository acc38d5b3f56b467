// Package cluster runs the control plane with a real Kubernetes API server, and agents with their Envoys as its pods.
package cluster
