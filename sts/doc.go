// Package sts exchanges tokens (OAuth 2.0 Token Exchange, RFC 8693) for applications next to the agent: a client posts
// the workload's token to /token on loopback, and receives an access token from an exchange server. The package checks
// the subject token before it sends it. It caches tokens and renews them before they expire. While the exchange server
// is unavailable, it returns the cached token until the token expires. Paths, parameters and responses are the same as
// in Istio's agent.
//
// Clients may send the parameters as a form (RFC 8693), as gRPC's STS credentials in C++ do, and thus Envoy's
// google_grpc services. They may also send them as a JSON object, as grpc-go's STS credentials do.
package sts
