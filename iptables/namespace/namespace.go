// Package namespace runs functions in a network namespace. Its Lock serializes changes of one namespace's redirection.
package namespace

import "time"

// LockTimeout is the maximum time that Acquire waits for the lock. It then continues without the lock, because any
// process of the namespace could hold it forever. Correctness does not depend on the lock, but on the kernel's
// transactions.
const LockTimeout = 5 * time.Second

// lockName is the abstract address of the Unix socket that implements the lock. Abstract addresses are private to the network
// namespace, and the kernel releases them when the process exits.
const lockName = "@pilotfish/redirection"
