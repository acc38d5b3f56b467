// Package peers tests the agent's relay between control planes and clients of other projects: the server, caches and
// end-to-end test of go-control-plane, and gRPC's own xDS client and server. It is a separate module, so that the
// project does not depend on those control planes: `make test` runs it last.
package peers
