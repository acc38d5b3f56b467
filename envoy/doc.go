// Package envoy owns one Envoy process: it finds a fit binary, writes its command line, starts it so that it cannot
// outlive its owner, talks to its admin interface, stops it by one deadline, and says why it ended.
package envoy
