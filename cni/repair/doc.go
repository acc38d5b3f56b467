// Package repair checks the redirection rules in the network namespaces of a node's running pods, and reports missing
// or incorrect rules. Depending on the mode, it repairs, deletes or labels a pod that the CNI plugin did not redirect.
// It acts once per sandbox.
package repair
