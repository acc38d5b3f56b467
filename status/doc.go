// Package status is the agent's HTTP server at port 15020: readiness and liveness with reasons, the merged metrics of
// agent, Envoy and applications, the drain and quit requests, and debug pages. The paths are those of Istio's agent.
package status
