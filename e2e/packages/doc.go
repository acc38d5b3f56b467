// Package packages builds the packages for virtual machines, and installs, uses and removes them. The machine is a copy of
// this one's file system: a private mount namespace whose changes are in memory, with its own network and processes. The
// kernel removes everything with the last process.
package packages
