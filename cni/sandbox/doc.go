// Package sandbox finds the network namespaces of the pods on a node through their processes in /proc. It never returns
// the node's own.
package sandbox
