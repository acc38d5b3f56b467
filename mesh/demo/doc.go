// Package demo implements the command `pilotfish demo`. It runs the book shop in the examples directory as a mesh on
// this machine, either for the user to try, or to check the mesh with real requests.
package demo
