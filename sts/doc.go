// Package sts exchanges tokens (OAuth 2.0 Token Exchange, RFC 8693) for applications next to the agent: a client posts
// the workload's token to /token on loopback, and receives an access token from an exchange server. The package checks
// the subject token before it sends it. It caches tokens and renews them before they expire. While the exchange server
// is unavailable, it returns the cached token until the token expires. Paths, parameters and responses are those of
// Istio's agent, where Istio has them.
//
// Supported clients are those that send RFC 8693 as a form, gRPC's STS credentials in C++ (and thus Envoy's google_grpc
// services), and those of grpc-go, which send the same parameters as a JSON object.
package sts
