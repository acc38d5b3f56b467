package dial

import "github.com/pilotfish-mesh/pilotfish/internal/backoff"

// Backoff is backoff.Backoff.
type Backoff = backoff.Backoff
