// Package install installs the CNI plugin on a node and maintains the installation. It installs the binary, the
// kubeconfig with which the plugin authenticates to the API server, and the entry in the node's CNI configuration. It
// uses this order so that no configuration references a missing file. Uninstall uses the reverse order. Each file
// changes atomically, and the original configuration is stored next to it.
package install
