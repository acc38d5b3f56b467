// Package redirection verifies the redirection rules with real connections. For many sets of options and with each
// backend, it makes every kind of connection in network namespaces and compares where it arrives with a table. The
// table is written by hand, not derived from the model, so that mistakes in the model are detected.
package redirection
