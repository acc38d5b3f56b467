// Package peers has the agent's relay stand between control planes and clients that nobody here wrote: the server, caches
// and end-to-end test of go-control-plane, and gRPC's own xDS client and server. It is a module of its own, so that the
// project does not depend on those control planes: `make test` runs it after the others.
package peers
