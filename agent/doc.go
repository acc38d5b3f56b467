// Package agent implements the agent of one proxy. It starts the components of a mesh proxy (status server, certificates,
// xDS relay, Envoy), and drains and stops them before one deadline. Package config resolves its configuration.
package agent
