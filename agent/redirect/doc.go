// Package redirect implements the command that redirects a pod's traffic to its Envoy. It resolves the options from
// flags, environment variables and the network namespace, and passes them to package iptables.
package redirect
