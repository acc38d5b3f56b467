// Package logging implements the agent's own log (levels by component, targets, rotation), changes of the log levels of
// the agent and its Envoy at run time, and the redaction of secrets in Envoy's log.
package logging
