// Package redirect is the command that steers a pod's traffic into its Envoy: it resolves options from flags, variables and
// what the namespace is like, and hands them to package iptables.
package redirect
