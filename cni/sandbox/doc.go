// Package sandbox finds the network namespaces of the pods that run on a node, by what the kernel knows of their processes:
// never the node's own.
package sandbox
