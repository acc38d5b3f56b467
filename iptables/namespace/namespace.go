// Package namespace does things in a network namespace, and keeps those who change the redirection of one from doing so
// at the same time; those of different namespaces do not wait for each other.
package namespace

import "time"

// Patience is how long Take waits. Any process of the namespace could hold the lock for ever, so that it cannot be what safety
// depends on: the kernel's transactions are.
const Patience = 5 * time.Second

// lockName is that of a socket which stands for the lock. Such names are the namespace's own, and the kernel gives them
// back whatever happens to the process. (A lock on the namespace's file would be the other way; but that is where
// iptables is told to take its own.)
const lockName = "@pilotfish/redirection"
