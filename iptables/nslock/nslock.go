// Package nslock keeps those who change the redirection of one network namespace from doing so at the same time, and
// those of different namespaces from waiting for each other.
package nslock

import "time"

// Patience is how long Hold waits. Any process of the namespace could hold the lock for ever, so that it cannot be what
// safety depends on: the kernel's transactions are.
const Patience = 5 * time.Second
