// Package status is the agent's HTTP server on port 15020: readiness and liveness with reasons, metrics of agent and
// Envoy together, the orders to drain and to quit, and a look inside. The paths are those of Istio's agent.
package status
