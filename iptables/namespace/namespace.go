// Package namespace runs code in a network namespace, and serialises changes of a namespace's redirection. Changes of
// different namespaces do not block each other.
package namespace

import "time"

// LockTimeout is how long Take waits. Any process of the namespace could hold the lock forever, so safety must not depend
// on the lock. It depends on the kernel's transactions.
const LockTimeout = 5 * time.Second

// lockName is the abstract address of the Unix socket that implements the lock. Such addresses are private to the
// network namespace, and the kernel releases them when the process exits. (A lock on the namespace's file is not
// possible, because iptables is configured to use that for its own lock.)
const lockName = "@pilotfish/redirection"
