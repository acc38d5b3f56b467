package mesh

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/crashbudget"
)

// minPause and maxPause limit the delay before a restart of a process or the control plane.
const (
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
)

// newRestartBudget returns the restart budget of a process. A process that ends immediately after each start exceeds
// the budget at its eighth failure.
func newRestartBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: 6.5, HalfLife: time.Minute, MinWait: minPause, MaxWait: maxPause}
}
