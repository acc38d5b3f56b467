// Package sandbox finds the network namespaces of the pods on a node. It searches for the pods' processes in /proc. It
// never returns the node's own network namespace.
package sandbox
