// Package envoy manages one Envoy process: it finds a suitable binary, builds the command line, starts Envoy so that it
// cannot outlive its owner, calls its admin interface, stops it by a deadline, and reports why it ended.
package envoy
