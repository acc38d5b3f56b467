package mesh

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/crashbudget"
)

// minPause and maxPause limit the delay before a process or the control plane is restarted.
const (
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
)

// newRestartBudget returns the budget of a process, which the eighth failure of a process that ends at once exceeds.
func newRestartBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: 6.5, HalfLife: time.Minute, MinWait: minPause, MaxWait: maxPause}
}
