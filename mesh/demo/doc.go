// Package demo is `pilotfish demo`: it brings up the book shop of the examples folder as a mesh on this machine, shows
// it to a person, or checks it with real requests and says what it found.
package demo
