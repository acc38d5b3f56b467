// Package install installs the CNI plugin on a node, and repairs the installation when another program changes it. It
// installs the binary, then the kubeconfig for the plugin's requests to the API server, then the entry in the node's
// CNI configuration. With this order, the configuration never references a missing file. Uninstall uses the reverse
// order. Each file is replaced atomically. An undo log contains the original configuration.
package install
