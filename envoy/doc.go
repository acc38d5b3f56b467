// Package envoy manages one Envoy process: it finds a binary of a supported version, builds the command line, starts
// Envoy, calls its admin interface, stops it before a deadline, and reports why it exited. The kernel kills Envoy if
// the process that started it exits.
package envoy
