// Package mesh runs a service mesh on one machine. It starts each workload of a topology with an address, a sidecar and its
// configuration. It supervises the processes, publishes events, and removes everything when it stops.
package mesh
