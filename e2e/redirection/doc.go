// Package redirection proves with real connections what the rules of redirection do: for each of many sets of options, and
// with each back end, every kind of connection is made in network namespaces and has to arrive where a table made by hand
// says. The table is not made from the model, so that a mistake in the model shows.
package redirection
