// Package repair checks the redirection rules in the network namespaces of the pods on a node. It reports differences.
// It repairs, deletes or labels a pod that the CNI plugin did not redirect, once per sandbox.
package repair
