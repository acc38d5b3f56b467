// Package sts exchanges tokens (OAuth 2.0 Token Exchange, RFC 8693) for whatever runs beside the agent: a client posts
// the workload's token to /token on loopback, and gets an access token that an exchange server elsewhere gave for it.
// The subject token is checked before it is sent anywhere, what was got is kept and renewed ahead of its end, and while
// the exchange server is away the token that is held is given out until it expires. Paths, parameters and answers are
// those of Istio's agent, where it had them.
//
// Clients are whatever speaks RFC 8693 in a form, gRPC's STS credentials in C++ (and so Envoy's google_grpc services),
// and those of grpc-go, which send the same parameters as a JSON object.
package sts
