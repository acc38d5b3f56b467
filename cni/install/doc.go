// Package install puts the CNI plugin on a node and keeps it there: its binary, the kubeconfig that it asks the API server
// with, and its place in the node's CNI configuration, in that order, so that no configuration ever names what is not there
// yet. It is taken away in the opposite order. Each file changes at once or not at all, and what the configuration was
// before is kept beside it.
package install
