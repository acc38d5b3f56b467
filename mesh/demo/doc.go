// Package demo implements `pilotfish demo`. It runs the book shop of the examples directory as a mesh on this machine,
// either interactively or to check the mesh with real requests.
package demo
