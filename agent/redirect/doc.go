// Package redirect implements the command that redirects a pod's traffic to its Envoy. It resolves options from flags,
// variables and the state of the namespace, and passes them to package iptables.
package redirect
