// Package mesh runs a service mesh on one machine. It starts each workload of a topology with an address, a sidecar and
// the sidecar's configuration. It supervises the processes and publishes events. When it stops, it removes all files,
// processes and networks that it created.
package mesh
