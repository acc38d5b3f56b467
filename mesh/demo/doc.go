// Package demo implements `pilotfish demo`: it runs the book shop of the examples directory as a mesh on this machine,
// interactively or to check it with real requests.
package demo
